#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "framework/tensor/dtype.h"
#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/nccl_comm.h"
#include "tests/support/cuda_host/settings.h"

namespace keel::cuda_host {
namespace {

using Bytes = std::vector<std::byte>;
enum Tag { hello, table, collectives, point_to_point };  // added to a communicator's tag

// A message that leaves. MPI keeps its address: where it cannot arrive, it is never freed.
struct Outgoing {
  Bytes bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};

class Outbox {
 public:
  // `wait` as NCCL's send may: until the other rank receives.
  void send(int to, int tag, Bytes bytes, bool wait) {
    auto* message = new Outgoing{std::move(bytes)};
    (wait ? MPI_Issend : MPI_Isend)(message->bytes.data(), int(message->bytes.size()), MPI_BYTE, to, tag,
                                    MPI_COMM_WORLD, &message->request);
    all_.push_back(message);
  }
  bool empty() {
    std::erase_if(all_, [](Outgoing* message) {
      int sent = 0;
      MPI_Test(&message->request, &sent, MPI_STATUS_IGNORE);
      if (sent) delete message;
      return sent != 0;
    });
    return all_.empty();
  }

 private:
  std::vector<Outgoing*> all_;
};

// A message that comes, of whatever size.
class Incoming {
 public:
  Incoming(int from, int tag) : from_(from), tag_(tag) {}
  bool arrived() {
    if (arrived_) return true;
    int found = 0;
    if (request_ == MPI_REQUEST_NULL) {
      MPI_Message message;
      MPI_Status status;
      MPI_Improbe(from_, tag_, MPI_COMM_WORLD, &found, &message, &status);
      if (!found) return false;
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      bytes.resize(size_t(size));
      MPI_Imrecv(bytes.data(), size, MPI_BYTE, &message, &request_);
    }
    MPI_Test(&request_, &found, MPI_STATUS_IGNORE);
    return arrived_ = found != 0;
  }
  Bytes bytes;

 private:
  int from_, tag_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool arrived_ = false;
};

Bytes packed(const Header& header, const void* data, uint64_t size) {
  Bytes bytes(sizeof header + size);
  std::memcpy(bytes.data(), &header, sizeof header);
  if (size > 0) {
    DeviceAccess access;
    std::memcpy(bytes.data() + sizeof header, data, size);
  }
  return bytes;
}
Header header_of(const Bytes& bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

// NCCL's arithmetic: each addition rounds to the type; a maximum drops a NaN.
template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  if (op == ncclSum) return T(Wide(a) + Wide(b));
  if constexpr (std::is_integral_v<T>)
    return std::max(a, b);
  else
    return T(std::fmax(Wide(a), Wide(b)));
}

// The n elements from `begin` on of all ranks' tensors, from rank `first` around: as in a ring, not in rank order.
struct Sum {
  const std::vector<const std::byte*>& inputs;
  uint64_t begin, n;
  size_t first;
  ncclRedOp_t op;

  template <class T>
  void into(std::byte* out) const {
    for (uint64_t i = 0; i < n; ++i) {
      T total = at<T>(first, i);
      for (size_t step = 1; step < inputs.size(); ++step)
        total = combine(total, at<T>((first + step) % inputs.size(), i), op);
      std::memcpy(out + i * sizeof(T), &total, sizeof(T));
    }
  }
  template <class T>
  T at(size_t rank, uint64_t i) const {
    T value;
    std::memcpy(&value, inputs[rank] + (begin + i) * sizeof(T), sizeof(T));
    return value;
  }
  void into(std::byte* out, int type) const {
    if (type == ncclFloat32) into<float>(out);
    if (type == ncclBfloat16) into<bf16>(out);
    if (type == ncclInt32) into<int32_t>(out);
    if (type == ncclInt64) into<int64_t>(out);
    if (type == ncclFloat64) into<double>(out);
  }
};

// One collective call: everyone sends what it has to all.
class Collective {
 public:
  explicit Collective(const Call& call) : call_(call) {}

  bool turn() {
    ncclComm& comm = *call_.comm;
    if (comm.state == ncclComm::State::aborted) return true;
    if (!begun_) begin();
    for (int rank = 0; rank < comm.size; ++rank)
      if (rank != comm.rank && !inbox_[size_t(rank)].arrived()) return false;
    if (!ended_) end();
    ended_ = true;
    if (!outbox_.empty()) return false;
    --comm.in_flight;
    return true;
  }

 private:
  void begin() {
    begun_ = true;
    const ncclComm& comm = *call_.comm;
    const bool gives = call_.header.verb != Verb::broadcast || comm.rank == call_.header.peer;
    const uint64_t bytes = gives ? call_.in_elements() * bytes_of(call_.header.type) : 0;
    const Bytes mine = packed(call_.header, call_.in, bytes);
    for (int rank = 0; rank < comm.size; ++rank) {
      inbox_.emplace_back(comm.world[size_t(rank)], comm.tag + collectives);
      if (rank == comm.rank)
        inbox_.back().bytes = mine;
      else
        outbox_.send(comm.world[size_t(rank)], comm.tag + collectives, mine, false);
    }
  }

  void end() {
    const ncclComm& comm = *call_.comm;
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < comm.size; ++rank) {
      const Header theirs = header_of(inbox_[size_t(rank)].bytes);
      if (std::memcmp(&theirs, &call_.header, sizeof theirs) != 0)
        return record_fault(fmt::format("NCCL: rank {} called {}, rank {} called {}", comm.rank, text(call_.header),
                                        rank, text(theirs)));
      inputs.push_back(inbox_[size_t(rank)].bytes.data() + sizeof(Header));
    }
    DeviceAccess access;
    store(inputs, static_cast<std::byte*>(call_.out));
  }

  void store(const std::vector<const std::byte*>& inputs, std::byte* out) const {
    const auto& [verb, type, op, peer, count, number] = call_.header;
    const auto own = size_t(call_.comm->rank), bytes = size_t(count * bytes_of(type));
    const auto operation = ncclRedOp_t(op);
    if (verb == Verb::broadcast) std::memcpy(out, inputs[size_t(peer)], bytes);
    if (verb == Verb::all_reduce) Sum{inputs, 0, count, 1 % inputs.size(), operation}.into(out, type);
    if (verb == Verb::reduce_scatter)
      Sum{inputs, own * count, count, (own + 1) % inputs.size(), operation}.into(out, type);
    if (verb == Verb::all_gather)
      for (size_t rank = 0; rank < inputs.size(); ++rank) std::memcpy(out + rank * bytes, inputs[rank], bytes);
  }

  Call call_;
  std::vector<Incoming> inbox_;
  Outbox outbox_;
  bool begun_ = false, ended_ = false;
};

// The sends and receives of one group, which go on together.
class Messages {
 public:
  explicit Messages(const std::vector<Call>& calls) : calls_(calls), comm_(*calls[0].comm) {}

  bool turn() {
    if (comm_.state == ncclComm::State::aborted) return true;
    if (!begun_) begin();
    for (size_t i = 0; i < receives_.size(); ++i)
      if (!received(i)) return false;
    if (!outbox_.empty()) return false;
    --comm_.in_flight;
    return true;
  }

 private:
  void begin() {
    begun_ = true;
    for (const Call& call : calls_) {
      const Header& header = call.header;
      const int world = comm_.world[size_t(header.peer)], tag = comm_.tag + point_to_point;
      if (header.verb == Verb::recv) {
        receives_.push_back({call, {world, tag}, header.peer == comm_.rank});
      } else if (Bytes bytes = packed(header, call.in, header.count * bytes_of(header.type));
                 header.peer == comm_.rank) {
        to_self_.push_back(std::move(bytes));
      } else {
        outbox_.send(world, tag, std::move(bytes), true);
      }
    }
  }

  // Messages of one rank come in the order sent, so a receive waits for those before it.
  bool received(size_t index) {
    Receive& receive = receives_[index];
    if (receive.done) return true;
    if (receive.from_self) {
      receive.incoming.bytes = std::move(to_self_.front());  // checked when the group ended: there are as many
      to_self_.pop_front();
    } else if (!receive.incoming.arrived()) {
      return false;
    }
    store(receive.call, receive.incoming.bytes);
    return receive.done = true;
  }

  void store(const Call& call, const Bytes& bytes) const {
    const Header sent = header_of(bytes), wanted = call.header;
    if (sent.count != wanted.count || sent.type != wanted.type)
      return record_fault(
          fmt::format("NCCL: rank {} called {}, rank {} called {}", comm_.rank, text(wanted), wanted.peer, text(sent)));
    DeviceAccess access;
    std::memcpy(call.out, bytes.data() + sizeof(Header), bytes.size() - sizeof(Header));
  }

  struct Receive {
    Call call;
    Incoming incoming;
    bool from_self;
    bool done = false;
  };
  std::vector<Call> calls_;
  ncclComm& comm_;
  std::vector<Receive> receives_;
  std::deque<Bytes> to_self_;
  Outbox outbox_;
  bool begun_ = false;
};

// Who is who: every rank tells the process that made the id, which tells all.
struct Member {
  int32_t rank, size, world, device;
};

template <class T>
Bytes bytes_from(const std::vector<T>& values) {
  auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + values.size() * sizeof(T)};
}

}  // namespace

class Meeting {
 public:
  explicit Meeting(const ncclComm& comm)
      : table_(comm.root, comm.tag + table), next_(MPI_ANY_SOURCE, comm.tag + hello) {
    int world = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    const Member mine{comm.rank, comm.size, world, physical_device(comm.device)};
    leads_ = world == comm.root;
    if (leads_)
      members_.push_back(mine);
    else
      outbox_.send(comm.root, comm.tag + hello, bytes_from(std::vector{mine}), false);
  }

  bool turn(ncclComm& comm) {
    if (!(leads_ ? collected(comm) : table_.arrived())) return false;
    if (!leads_ && members_.empty()) {
      members_.resize(table_.bytes.size() / sizeof(Member));
      std::memcpy(members_.data(), table_.bytes.data(), table_.bytes.size());
    }
    if (!outbox_.empty()) return false;
    comm.trouble = trouble();
    comm.async = comm.trouble.empty() ? ncclSuccess : ncclInvalidUsage;
    comm.state = ncclComm::State::ready;
    comm.world.assign(members_.size(), 0);
    for (const Member& member : members_) comm.world[size_t(member.rank)] = member.world;
    return true;
  }

 private:
  bool collected(const ncclComm& comm) {
    while (int(members_.size()) < comm.size) {
      if (!next_.arrived()) return false;
      Member member;
      std::memcpy(&member, next_.bytes.data(), sizeof member);
      members_.push_back(member);
      next_ = Incoming(MPI_ANY_SOURCE, comm.tag + hello);
    }
    for (const Member& member : members_)
      if (member.world != comm.root && !told_)
        outbox_.send(member.world, comm.tag + table, bytes_from(members_), false);
    return told_ = true;
  }

  static std::string trouble_between(const Member& a, const Member& b) {
    if (a.size != b.size) return fmt::format("rank {} expects {} ranks, rank {} {}", a.rank, a.size, b.rank, b.size);
    if (a.rank == b.rank) return fmt::format("there are two ranks {}", a.rank);
    if (a.device != b.device) return {};
    return fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {}", a.rank, b.rank, a.device);
  }
  std::string trouble() const {
    for (const Member& a : members_)
      for (const Member& b : members_)
        if (std::string found = &a == &b ? "" : trouble_between(a, b); !found.empty()) return found;
    return {};
  }

  std::vector<Member> members_;
  Incoming table_, next_;
  Outbox outbox_;
  bool leads_, told_ = false;
};

bool meet(ncclComm& comm) {
  if (comm.size == 1) {
    comm.world = {comm.root};
    comm.state = ncclComm::State::ready;
    comm.async = ncclSuccess;
    return true;
  }
  if (!comm.meeting) comm.meeting = std::make_shared<Meeting>(comm);
  return comm.meeting->turn(comm);
}

Turn collective(const Call& call) {
  return [exchange = std::make_shared<Collective>(call)] { return exchange->turn(); };
}

Turn messages(const std::vector<Call>& calls) {
  return [exchange = std::make_shared<Messages>(calls)] { return exchange->turn(); };
}

}  // namespace keel::cuda_host
