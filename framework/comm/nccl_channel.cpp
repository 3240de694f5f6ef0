#include "framework/comm/nccl_channel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "framework/tensor/cuda_call.h"

namespace keel::comm {
namespace {

// So many operations of a channel, not counting those that requests hold, may be in flight before the host waits for
// the oldest: how many a channel has then follows from the program alone, and a step allocates none.
constexpr int64_t kDepth = 64;
constexpr double kClosing_seconds = 10;
constexpr double kAborting_seconds = 5;

constexpr const char* kHints =
    "NCCL_DEBUG=INFO shows what NCCL does, NCCL_SOCKET_IFNAME names the network interface to use, NCCL_IB_DISABLE=1 "
    "leaves InfiniBand out (mpirun -x NAME passes a variable on)";

constexpr Label kStart{"the start", 0, DType::f32};
constexpr Label kEnd{"the end", 0, DType::f32};
constexpr Label kNothing{"nothing", 0, DType::f32};

}  // namespace

void check_nccl(ncclResult_t result, const char* call, std::source_location where) {
  if (result == ncclSuccess || result == ncclInProgress) [[likely]]
    return;
  std::string_view name(call);
  name = name.substr(0, name.find('('));
  throw Error(ErrorKind::internal,
              fmt::format("{} failed: {}: {}", name, ncclGetErrorString(result), ncclGetLastError(nullptr)), where);
}

void NcclFamily::look() {
  require(!gpu_left_running(), "NCCL did not stop after an earlier error; this GPU cannot be waited for any more");
  const NcclOperation* oldest = nullptr;
  for (NcclChannel* channel : channels_) {
    channel->look();
    const NcclOperation* one = channel->oldest_in_flight();
    if (one && (!oldest || one->started() < oldest->started())) oldest = one;
  }
  if (oldest && seconds_since(oldest->started()) < kLong_seconds) oldest = nullptr;
  const Clock::time_point since = oldest ? oldest->started() : Clock::time_point();
  if (since == told_) return;
  told_ = since;
  oldest ? oldest->tell(*standing_) : standing_->goes_on();
}

void NcclFamily::unwind() noexcept {
  if (broken_) return;
  const auto ends = [](NcclChannel* channel) { return channel->ends_within(kBriefly_seconds); };
  if (!std::all_of(channels_.begin(), channels_.end(), ends)) abort_all();
}

bool NcclFamily::at_rest() {
  const auto works = [](NcclChannel* channel) { return channel->oldest_in_flight() != nullptr; };
  return !gpu_left_running() && std::ranges::none_of(channels_, works);
}

// One group's end may wait for another's to be asked for, so all are asked first. What does not come back (a peer or a
// network that is gone, NVIDIA/nccl#1013) would keep the whole GPU.
void NcclFamily::abort_all() noexcept {
  broken_ = true;
  std::vector<std::shared_ptr<const std::atomic<bool>>> ended;
  for (NcclChannel* channel : channels_) ended.push_back(channel->start_abort());
  const auto begin = Clock::now();
  const auto has_ended = [](const auto& one) { return one->load(); };
  while (!std::all_of(ended.begin(), ended.end(), has_ended) && seconds_since(begin) < kAborting_seconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!std::all_of(ended.begin(), ended.end(), has_ended)) leave_gpu_running();
}

void NcclFamily::require_whole() {
  if (kept_) std::rethrow_exception(std::exchange(kept_, nullptr));
  require(!broken_, "NCCL was aborted after an earlier error; nothing can be sent between GPUs any more");
}

void NcclOperation::tell(Standing& standing) const {
  standing.waits_since(started_, channel_.place_, label_);
}

bool NcclOperation::test() {
  if (waiting_) channel_.send_messages();
  channel_.family().look();
  return done_.done();
}

void NcclOperation::finish() {
  --channel_.held_;
  held_ = false;
  channel_.family().require_whole();
  if (waiting_) channel_.send_messages();
  Stream::current(channel_.stream().device()).wait(done_);
}

void NcclOperation::release() noexcept {
  if (std::uncaught_exceptions() > 0 || channel_.family().broken()) {
    // The memory's end looks after what is in flight (NcclFamily::unwind); a message that does not move yet never will.
    held_ = waiting_ = false;
    --channel_.held_;
    return;
  }
  try {
    finish();
  } catch (...) {
    channel_.family().keep(std::current_exception());
  }
}

NcclChannel::NcclChannel(std::shared_ptr<NcclFamily> family, Place place)
    : family_(std::move(family)), place_(std::move(place)), stream_(family_->device, true), ready_(family_->device) {
  for (int64_t i = 0; i < kDepth; ++i) operations_.emplace_back(*this, family_->device);
  family_->enlist(*this);
}

NcclChannel::~NcclChannel() {
  family_->strike(*this);
  if (!comm_) return;
  try {
    require(std::uncaught_exceptions() == 0, "the other ranks may not come to their end");
    close();
  } catch (...) {
    family_->enlist(*this);
    family_->abort_all();
    family_->strike(*this);
  }
}

// Communicators never block the host: a rank that does not come shows in the time limit and not in a hang. It costs
// each verb a thread inside NCCL (some tens of microseconds of the host), while the GPU is still busy with what came
// before.
void NcclChannel::connect(const ncclUniqueId& id) {
  KEEL_CUDA(cudaSetDevice(family_->device.index));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = place_.name.c_str();
  call(kStart, [&](ncclComm_t, cudaStream_t) {
    KEEL_NCCL(ncclCommInitRankConfig(&comm_, place_.size, id, place_.rank, &config));
  });
}

void NcclChannel::close() {
  require(ends_within(kClosing_seconds), "verbs of group '{}' are still in flight", place_.name);
  KEEL_NCCL(ncclCommFinalize(comm_));
  settle(kEnd, kClosing_seconds);
  KEEL_NCCL(ncclCommDestroy(std::exchange(comm_, nullptr)));
}

// ncclCommAbort stops what runs on the GPU at once, and may then wait for other ranks of this host to do the same.
std::shared_ptr<const std::atomic<bool>> NcclChannel::start_abort() noexcept {
  auto ended = std::make_shared<std::atomic<bool>>(comm_ == nullptr);
  if (!comm_) return ended;
  std::thread([comm = std::exchange(comm_, nullptr), ended] {
    ncclCommAbort(comm);
    *ended = true;
  }).detach();
  return ended;
}

NcclOperation& NcclChannel::take() {
  family_->require_whole();
  auto idle = std::find_if(operations_.begin(), operations_.end(), [](const auto& one) { return !one.held_; });
  if (int64_t(operations_.size()) - held_ < kDepth)
    idle = operations_.emplace(operations_.end(), *this, family_->device);
  while (!idle->ended_ && !(idle->ended_ = idle->done_.done())) {
    family_->look();
    sched_yield();
  }
  operations_.splice(operations_.end(), operations_, idle);
  return *idle;
}

NcclOperation& NcclChannel::begin(const Label& label) {
  NcclOperation& operation = take();
  operation.label_ = label;
  cuda::limit_run_ahead(static_cast<cudaStream_t>(stream_.native()));
  ready_.record(Stream::current(family_->device));
  stream_.wait(ready_);
  return operation;
}

void NcclChannel::start(NcclOperation& operation) {
  operation.started_ = Clock::now();
  operation.done_.record(stream_);
  operation.ended_ = operation.waiting_ = false;
}

Request NcclChannel::end(NcclOperation& operation) {
  start(operation);
  operation.held_ = true;
  ++held_;
  return Request(operation);
}

Request NcclChannel::end_later(NcclOperation& operation, const NcclMessage& message) {
  operation.message_ = message;
  operation.held_ = operation.waiting_ = true;
  ++held_;
  return Request(operation);
}

// A group, so that a send and a receive of two ranks that exchange do not wait for each other.
void NcclChannel::send_messages() {
  const auto waits = [](const NcclOperation& one) { return one.waiting_; };
  const Label label = std::find_if(operations_.begin(), operations_.end(), waits)->label_;
  call(label, [&](ncclComm_t comm, cudaStream_t stream) {
    NcclGroup group;
    for (const NcclOperation& operation : operations_) {
      if (!operation.waiting_) continue;
      const auto& [leaves, data, elements, type, peer] = operation.message_;
      if (leaves) KEEL_NCCL(ncclSend(data, elements, type, peer, comm, stream));
      if (!leaves) KEEL_NCCL(ncclRecv(data, elements, type, peer, comm, stream));
    }
    group.end();
  });
  for (NcclOperation& operation : operations_)
    if (operation.waiting_) start(operation);
}

const NcclOperation* NcclChannel::oldest_in_flight() {
  const NcclOperation* oldest = nullptr;
  if (!comm_) return oldest;
  for (NcclOperation& one : operations_) {
    if (one.ended_ || one.waiting_ || (one.ended_ = one.done_.done())) continue;
    if (!oldest || one.started_ < oldest->started_) oldest = &one;
  }
  return oldest;
}

void NcclChannel::look() {
  if (!comm_) return;
  const NcclOperation* oldest = oldest_in_flight();
  const Label label = oldest ? oldest->label_ : kNothing;
  state(label);
  const double limit = family_->time_limit_seconds;
  if (oldest && limit > 0 && seconds_since(oldest->started_) > limit) fail_late(label, limit);
}

bool NcclChannel::ends_within(double seconds) noexcept {
  try {
    for (const auto begin = Clock::now(); comm_ && oldest_in_flight(); sched_yield())
      if (seconds_since(begin) > seconds) return false;
    return true;
  } catch (...) {
    return false;  // the GPU has failed
  }
}

ncclResult_t NcclChannel::state(const Label& label) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress)
    fail("NCCL failure", label, fmt::format("{}: {}", ncclGetErrorString(state), ncclGetLastError(comm_)));
  return state;
}

void NcclChannel::settle(const Label& label, double limit_seconds) {
  for (const auto begin = Clock::now(); state(label) == ncclInProgress; sched_yield())
    if (limit_seconds > 0 && seconds_since(begin) > limit_seconds) fail_late(label, limit_seconds);
}

void NcclChannel::fail(const char* kind, const Label& label, const std::string& what) {
  family_->abort_all();
  throw Error(ErrorKind::internal, fmt::format("{}: {}: {}; {}", kind, text(place_, label), what, kHints));
}

void NcclChannel::fail_late(const Label& label, double limit_seconds) {
  if (family_->on_timeout) family_->on_timeout();
  fail("comm timeout", label, fmt::format("{} s passed without its end: another rank did not come", limit_seconds));
}

}  // namespace keel::comm
