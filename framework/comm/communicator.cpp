#include "framework/comm/communicator.h"

#include <array>
#include <cstring>
#include <vector>

#include "framework/base/rng.h"

namespace keel::comm {
namespace {

bool overlap(const ConstTensor& a, const ConstTensor& b) {
  auto* a_begin = static_cast<const std::byte*>(a.data());
  auto* b_begin = static_cast<const std::byte*>(b.data());
  return a_begin < b_begin + b.size_bytes() && b_begin < a_begin + a.size_bytes();
}

// One tensor: can it be sent or received at all?
void check(std::string_view verb, const ConstTensor& x) {
  require(x.defined(), "{}: a tensor is undefined", verb);
  require(x.contiguous(), "{}: the tensor {} is not contiguous", verb, x.shape());
}

// Output and input: the same type and device, `out_times * out` as many elements as `in_times * in`.
void check_pair(std::string_view verb, const ConstTensor& out, const ConstTensor& in, int out_times, int in_times) {
  check(verb, out);
  check(verb, in);
  require(out.dtype() == in.dtype(), "{}: output is {}, input {}", verb, name_of(out.dtype()), name_of(in.dtype()));
  require(out.device() == in.device(), "{}: output on {}, input on {}", verb, out.device().text(), in.device().text());
  require(out.elements() * out_times == in.elements() * in_times, "{}: {} * {} output elements, {} * {} input elements",
          verb, out_times, out.elements(), in_times, in.elements());
}

void check_rank(std::string_view verb, int rank, int size) {
  require(0 <= rank && rank < size, "{}: rank {} is outside a group of {}", verb, rank, size);
}

// `part` may be block `rank` of `whole`, or lie apart from it.
void check_aliasing(std::string_view verb, const ConstTensor& whole, const ConstTensor& part, int rank) {
  auto* own = static_cast<const std::byte*>(whole.data()) + rank * part.size_bytes();
  require(part.data() == own || !overlap(whole, part),
          "{}: input and output overlap other than by the rank's own block", verb);
}

bool nothing_to_do(const ConstTensor& x) {
  return x.device().is_meta() || x.elements() == 0;
}

}  // namespace

Request& Request::operator=(Request&& other) noexcept {
  Request taken(std::move(other));
  std::swap(operation_, taken.operation_);  // what was held is released with `taken`
  return *this;
}

Request::~Request() {
  if (operation_) operation_->release();
}

void Request::wait() {
  if (Operation* operation = std::exchange(operation_, nullptr)) operation->finish();
}

bool Request::test() {
  if (operation_ && !operation_->test()) return false;
  wait();
  return true;
}

Request Communicator::start_all_reduce(Tensor out, ConstTensor in, Reduction reduction) {
  check_pair("all_reduce", out, in, 1, 1);
  if (nothing_to_do(in)) return {};
  require(out.data() == in.data() || !overlap(out, in), "all_reduce: input and output overlap in part");
  return do_all_reduce(out, in, reduction);
}

Request Communicator::start_reduce_scatter(Tensor out, ConstTensor in) {
  check_pair("reduce_scatter", out, in, size_, 1);
  if (nothing_to_do(in)) return {};
  check_aliasing("reduce_scatter", in, out, rank_);
  return do_reduce_scatter(out, in);
}

Request Communicator::start_all_gather(Tensor out, ConstTensor in) {
  check_pair("all_gather", out, in, 1, size_);
  if (nothing_to_do(in)) return {};
  check_aliasing("all_gather", out, in, rank_);
  return do_all_gather(out, in);
}

Request Communicator::start_all_to_all(Tensor out, ConstTensor in) {
  check_pair("all_to_all", out, in, 1, 1);
  require(in.elements() % size_ == 0, "all_to_all: {} elements on {} ranks", in.elements(), size_);
  if (nothing_to_do(in)) return {};
  require(!overlap(out, in), "all_to_all: input and output overlap");
  return do_all_to_all(out, in);
}

Request Communicator::start_broadcast(Tensor x, int root) {
  check("broadcast", x);
  check_rank("broadcast", root, size_);
  return nothing_to_do(x) ? Request() : do_broadcast(x, root);
}

Request Communicator::start_send(ConstTensor x, int to) {
  check("send", x);
  check_rank("send", to, size_);
  return x.device().is_meta() ? Request() : do_send(x, to);
}

Request Communicator::start_recv(Tensor x, int from) {
  check("recv", x);
  check_rank("recv", from, size_);
  return x.device().is_meta() ? Request() : do_recv(x, from);
}

void Communicator::all_reduce(Tensor out, ConstTensor in, Reduction reduction) {
  start_all_reduce(out, in, reduction).wait();
}

double all_reduce_value(Communicator& group, double value, Reduction reduction) {
  group.all_reduce(Tensor(&value, {1}, DType::f64), reduction);
  return value;
}

int64_t all_reduce_value(Communicator& group, int64_t value, Reduction reduction) {
  group.all_reduce(Tensor(&value, {1}, DType::i64), reduction);
  return value;
}

int64_t lowest_rank_where(Communicator& group, bool here) {
  return -all_reduce_value(group, -int64_t(here ? group.rank() : group.size()), Reduction::max);
}

std::string broadcast_text(Communicator& group, std::string_view text, int root) {
  int64_t bytes = int64_t(text.size());
  group.broadcast(Tensor(&bytes, {1}, DType::i64), root);
  std::vector<int32_t> words((bytes + 3) / 4);  // tensors have no bytes
  if (group.rank() == root && bytes > 0) std::memcpy(words.data(), text.data(), text.size());
  group.broadcast(Tensor(words.data(), {int64_t(words.size())}, DType::i32), root);
  return std::string(reinterpret_cast<const char*>(words.data()), size_t(bytes));
}

void require_same(Communicator& group, std::string_view name, std::string_view bytes, ErrorKind kind) {
  const std::array<uint64_t, 2> mine = {bytes.size(), key_of(0, bytes)};
  std::array<uint64_t, 2> first = mine;
  group.broadcast(Tensor(first.data(), {2}, DType::i64), 0);
  bool same = mine == first;
  const int64_t rank = lowest_rank_where(group, !same);
  if (rank == group.size()) return;
  throw Error(kind, fmt::format("{} differs between ranks: rank {} does not have what rank 0 has (of {} ranks): start "
                                "every rank from the same files, build and environment",
                                name, rank, group.size()));
}

}  // namespace keel::comm
