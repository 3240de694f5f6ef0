#include "framework/comm/mpi_verbs.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "framework/comm/reduce.h"

namespace keel::comm {
namespace {

constexpr int64_t kBroadcastPiece_bytes = int64_t(1) << 20;

std::byte* at(void* data, int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + elements * bytes_of(dtype);
}
const std::byte* at(const void* data, int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + elements * bytes_of(dtype);
}

// Peers in an order in which at any time each rank is addressed by one other.
int peer_to(const MpiOperation& operation, int step) {
  return (operation.rank() + step) % operation.size();
}
int peer_from(const MpiOperation& operation, int step) {
  return (operation.rank() - step + operation.size()) % operation.size();
}

// Sends the own block of `out` to all others and receives theirs.
void post_gather(MpiOperation& operation, const Exchange& x) {
  const int64_t size = bytes_of(x.dtype), own = x.blocks.size(operation.rank());
  for (int step = 1; step < operation.size(); ++step) {
    const int to = peer_to(operation, step), from = peer_from(operation, step);
    const int64_t theirs = x.blocks.size(from);
    if (theirs > 0) operation.receive(at(x.out, x.blocks.begin(from), x.dtype), theirs * size, from);
    if (own > 0) operation.send(at(x.out, x.blocks.begin(operation.rank()), x.dtype), own * size, to);
  }
}

// One block's sum, a chunk at a time, kInFlight chunks at once; chunk c uses batch c % kInFlight and that part of the
// scratch.
class ChunkedSum {
 public:
  ChunkedSum(MpiOperation& operation, const Exchange& x, void* out) : operation_(operation), x_(x), out_(out) {
    const int64_t peers = operation.size() - 1;
    const int64_t share = operation.options().scratch_bytes / (kInFlight * std::max<int64_t>(1, peers));
    const int64_t bytes = std::min(operation.options().chunk_bytes, share);
    chunk_ = std::min(x.blocks.block, std::max<int64_t>(1, bytes / bytes_of(x.dtype)));
    scratch_ = operation.scratch(kInFlight * peers * chunk_ * bytes_of(x.dtype));
  }

  static constexpr int kInFlight = MpiOperation::kBatches;
  int64_t chunks() const { return (x_.blocks.block + chunk_ - 1) / chunk_; }

  void post(int64_t chunk) {
    if (chunk >= chunks()) return;
    const int batch = int(chunk % kInFlight);
    for (int step = 1; step < operation_.size(); ++step) {
      const int to = peer_to(operation_, step), from = peer_from(operation_, step);
      const int64_t own = bytes(operation_.rank(), chunk), theirs = bytes(to, chunk);
      if (own > 0) operation_.receive(slot(chunk, from), own, from, batch);
      if (theirs > 0) operation_.send(at(x_.in, begin(to, chunk), x_.dtype), theirs, to, batch);
    }
  }

  void add(int64_t chunk) {
    const int own = operation_.rank();
    auto& inputs = operation_.pointers();
    for (int rank = 0; rank < operation_.size(); ++rank)
      inputs.push_back(rank == own ? at(x_.in, begin(own, chunk), x_.dtype) : slot(chunk, rank));
    reduce_in_order(at(out_, chunk * chunk_, x_.dtype), inputs, bytes(own, chunk) / bytes_of(x_.dtype), x_.dtype,
                    x_.reduction);
  }

 private:
  int64_t begin(int rank, int64_t chunk) const { return x_.blocks.begin(rank) + chunk * chunk_; }
  int64_t bytes(int rank, int64_t chunk) const {
    return std::clamp<int64_t>(x_.blocks.size(rank) - chunk * chunk_, 0, chunk_) * bytes_of(x_.dtype);
  }
  std::byte* slot(int64_t chunk, int from) const {
    const int64_t peers = operation_.size() - 1, index = from < operation_.rank() ? from : from - 1;
    return scratch_ + (chunk % kInFlight * peers + index) * chunk_ * bytes_of(x_.dtype);
  }

  MpiOperation& operation_;
  const Exchange& x_;
  void* out_;
  int64_t chunk_;
  std::byte* scratch_;
};

}  // namespace

Steps small_all_reduce(MpiOperation& operation, Exchange x) {
  const int size = operation.size(), rank = operation.rank();
  const int64_t bytes = x.blocks.elements * bytes_of(x.dtype);
  std::byte* parts = operation.scratch(size * bytes);  // part i is from rank (rank + i) % size
  std::memcpy(parts, x.in, size_t(bytes));
  for (int have = 1; have < size; have *= 2) {
    const int more = std::min(have, size - have);
    operation.receive(parts + have * bytes, more * bytes, peer_to(operation, have));
    operation.send(parts, more * bytes, peer_from(operation, have));
    co_await operation.arrival();
  }
  auto& inputs = operation.pointers();
  for (int from = 0; from < size; ++from) inputs.push_back(parts + (from - rank + size) % size * bytes);
  reduce_in_order(x.out, inputs, x.blocks.elements, x.dtype, x.reduction);
}

Steps reduce_blocks(MpiOperation& operation, Exchange x, bool gather) {
  void* own = gather ? at(x.out, x.blocks.begin(operation.rank()), x.dtype) : x.out;
  ChunkedSum sum(operation, x, own);
  for (int64_t chunk = 0; chunk < sum.kInFlight; ++chunk) sum.post(chunk);
  for (int64_t chunk = 0; chunk < sum.chunks(); ++chunk) {
    co_await operation.arrival(int(chunk % sum.kInFlight));
    sum.add(chunk);
    sum.post(chunk + sum.kInFlight);
  }
  if (!gather) co_return;
  post_gather(operation, x);
  co_await operation.arrival();
}

Steps gather_blocks(MpiOperation& operation, Exchange x) {
  std::byte* own = at(x.out, x.blocks.begin(operation.rank()), x.dtype);
  if (x.in != own) std::memcpy(own, x.in, size_t(x.blocks.block * bytes_of(x.dtype)));
  post_gather(operation, x);
  co_await operation.arrival();
}

Steps exchange_blocks(MpiOperation& operation, Exchange x) {
  const int64_t bytes = x.blocks.block * bytes_of(x.dtype);
  const int64_t own = x.blocks.begin(operation.rank());
  std::memcpy(at(x.out, own, x.dtype), at(x.in, own, x.dtype), size_t(bytes));
  for (int step = 1; step < operation.size(); ++step) {
    const int to = peer_to(operation, step), from = peer_from(operation, step);
    operation.receive(at(x.out, x.blocks.begin(from), x.dtype), bytes, from);
    operation.send(at(x.in, x.blocks.begin(to), x.dtype), bytes, to);
  }
  co_await operation.arrival();
}

Steps broadcast(MpiOperation& operation, Tensor x, int root) {
  const int size = operation.size(), place = (operation.rank() - root + size) % size;  // in the tree; the root is 0
  const int parent = place & (place - 1);  // without the lowest bit, which is the distance to the parent
  const int reach = place == 0 ? int(std::bit_ceil(unsigned(size))) : place & -place;
  auto* data = static_cast<std::byte*>(x.data());
  for (int64_t begin = 0; begin < x.size_bytes(); begin += kBroadcastPiece_bytes) {
    const int64_t bytes = std::min(kBroadcastPiece_bytes, x.size_bytes() - begin);
    if (place != 0) operation.receive(data + begin, bytes, (parent + root) % size);
    co_await operation.arrival();
    for (int step = reach / 2; step > 0; step /= 2)
      if (place + step < size) operation.send(data + begin, bytes, (place + step + root) % size, 1);
  }
  co_await operation.arrival(1);
}

Steps send_one(MpiOperation& operation, ConstTensor x, int to) {
  operation.send(x.data(), x.size_bytes(), to);
  co_await operation.arrival();
}

Steps receive_one(MpiOperation& operation, Tensor x, int from) {
  operation.receive(x.data(), x.size_bytes(), from);
  co_await operation.arrival();
}

Steps meet(MpiOperation& operation) {
  for (int distance = 1; distance < operation.size(); distance *= 2) {
    operation.receive(nullptr, 0, peer_from(operation, distance));
    operation.send(nullptr, 0, peer_to(operation, distance));
    co_await operation.arrival();
  }
}

}  // namespace keel::comm
