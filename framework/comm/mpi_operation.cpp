#include "framework/comm/mpi_operation.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "framework/base/trace.h"

namespace keel::comm {
namespace {

constexpr int64_t kPollsBetweenLooks = 64;  // at the clock, and at whether someone else needs the core

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, size_t(length));
}

}  // namespace

void check_mpi(int code, const char* call, std::source_location where) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  std::string_view name(call);
  name = name.substr(0, name.find('('));
  throw Error(ErrorKind::internal, fmt::format("{} failed: {}", name, mpi_text(code)), where);
}

MPI_Request& MpiOperation::Batch::add(int peer, int bytes) {
  peers.push_back(peer);
  expected_bytes.push_back(bytes);
  return requests.emplace_back(MPI_REQUEST_NULL);
}

void MpiOperation::Batch::clear() {
  requests.clear();
  peers.clear();
  expected_bytes.clear();
}

const MpiOptions& MpiOperation::options() const {
  return engine_.options;
}

void MpiOperation::send(const void* data, int64_t bytes, int to, int batch) {
  int64_t done = 0;
  do {
    int piece = int(std::min(bytes - done, options().message_bytes));
    MPI_Request& request = batches_[batch].add(to, kIsSend);
    KEEL_MPI(MPI_Isend(static_cast<const std::byte*>(data) + done, piece, MPI_BYTE, to, tag_, group_->comm, &request));
    done += piece;
  } while (done < bytes);
}

void MpiOperation::receive(void* data, int64_t bytes, int from, int batch) {
  int64_t done = 0;
  do {
    int piece = int(std::min(bytes - done, options().message_bytes));
    MPI_Request& request = batches_[batch].add(from, piece);
    KEEL_MPI(MPI_Irecv(static_cast<std::byte*>(data) + done, piece, MPI_BYTE, from, tag_, group_->comm, &request));
    done += piece;
  } while (done < bytes);
}

std::byte* MpiOperation::scratch(int64_t bytes) {
  if (int64_t(scratch_.size()) < bytes) scratch_.resize(size_t(bytes));
  return scratch_.data();
}

std::vector<const void*>& MpiOperation::pointers() {
  pointers_.clear();
  return pointers_;
}

MpiOperation& MpiOperation::prepare(const MpiGroup& group, int tag, const Label& label) {
  group_ = &group;
  tag_ = tag;
  label_ = label;
  return *this;
}

Request MpiOperation::start(Steps steps) {
  steps_ = steps.handle;
  waiting_for_ = 0;
  ended_ = false;
  advance();
  if (!ended_) engine_.enlist(*this);
  return Request(*this);
}

bool MpiOperation::arrived(Batch& batch) {
  const int count = int(batch.requests.size());
  if (count == 0) return true;
  int all = 0;
  batch.statuses.resize(size_t(count));
  int code = MPI_Testall(count, batch.requests.data(), &all, batch.statuses.data());
  if (code != MPI_ERR_IN_STATUS) {
    KEEL_MPI(code);
    if (!all) return false;
    for (auto& status : batch.statuses) status.MPI_ERROR = MPI_SUCCESS;  // MPI leaves it unset in this case
  }
  for (size_t i = 0; i < size_t(count); ++i) check_message(batch, i);
  batch.clear();
  return true;
}

void MpiOperation::check_message(const Batch& batch, size_t index) const {
  const MPI_Status& status = batch.statuses[index];
  if (status.MPI_ERROR == MPI_ERR_PENDING) return;
  int bytes = batch.expected_bytes[index];
  if (status.MPI_ERROR == MPI_SUCCESS && bytes != kIsSend) KEEL_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
  if (status.MPI_ERROR == MPI_SUCCESS && bytes == batch.expected_bytes[index]) return;
  const std::string trouble = status.MPI_ERROR == MPI_SUCCESS
                                  ? fmt::format("{} bytes came, {} were expected", bytes, batch.expected_bytes[index])
                                  : mpi_text(status.MPI_ERROR);
  require(false,
          "{}: message of rank {}: {}; every rank must call the same verbs with the same sizes in the same order",
          text(), batch.peers[index], trouble);
}

bool MpiOperation::advance() noexcept {
  try {
    if (!arrived(batches_[waiting_for_])) return false;
    steps_.resume();
    if (!steps_.done()) return true;
    error_ = steps_.promise().error;
  } catch (...) {
    error_ = std::current_exception();
  }
  ended_ = true;
  return true;
}

bool MpiOperation::test() {
  engine_.poll();
  return ended_;
}

void MpiOperation::finish() {
  const Span span(label_.verb);
  engine_.wait(*this);
  if (std::exception_ptr error = error_) {
    engine_.give_up(*this);
    std::rethrow_exception(error);
  }
  recycle();
}

void MpiOperation::release() noexcept {
  if (engine_.broken()) return;
  if (std::uncaught_exceptions() > 0) {
    bool complete = engine_.wait_briefly(*this) && !error_;
    return complete ? recycle() : engine_.give_up(*this);
  }
  try {
    finish();
  } catch (...) {
    engine_.keep(std::current_exception());
  }
}

void MpiOperation::recycle() {
  if (steps_) steps_.destroy();
  steps_ = nullptr;
  idle_ = true;
}

void MpiOperation::cancel_receives() noexcept {
  for (Batch& batch : batches_) {
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      if (batch.expected_bytes[i] == kIsSend || batch.requests[i] == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&batch.requests[i]);
    }
  }
}

std::string MpiOperation::missing_ranks() {
  std::vector<int> missing;
  for (Batch& batch : batches_) {
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      int arrived = 0;
      MPI_Request_get_status(batch.requests[i], &arrived, MPI_STATUS_IGNORE);
      if (!arrived) missing.push_back(batch.peers[i]);
    }
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  constexpr size_t kNamed = 8;
  std::string names =
      fmt::format("{}", fmt::join(missing.begin(), missing.begin() + std::min(missing.size(), kNamed), ", "));
  return missing.size() > kNamed ? names + fmt::format(" and {} more", missing.size() - kNamed) : names;
}

MpiOperation& MpiEngine::take() {
  if (kept_) std::rethrow_exception(std::exchange(kept_, nullptr));
  require(!broken_, "a message was given up after an earlier error; nothing can be sent any more");
  // The first, so that each step gives the same verbs the same operations, which then have what they need.
  auto idle = std::find_if(all_.begin(), all_.end(), [](auto& operation) { return operation->idle_; });
  MpiOperation& operation = **(idle != all_.end() ? idle : all_.insert(idle, std::make_unique<MpiOperation>(*this)));
  operation.idle_ = false;
  active_.reserve(all_.size());
  return operation;
}

bool MpiEngine::poll() noexcept {
  bool happened = false;
  for (MpiOperation* operation : active_) happened |= operation->advance();
  if (happened) std::erase_if(active_, [](MpiOperation* operation) { return operation->ended_; });
  return happened;
}

bool MpiEngine::poll_until(MpiOperation& operation, double limit_seconds) noexcept {
  const auto begin = Clock::now();
  bool told = false;
  for (int64_t idle_polls = 1; !operation.ended_; ++idle_polls) {
    if (poll()) continue;
    if (options.pause_microseconds > 0) usleep(useconds_t(options.pause_microseconds));
    if (options.pause_microseconds == 0 && idle_polls % kPollsBetweenLooks != 0) continue;
    const double waited_seconds = seconds_since(begin);
    if (waited_seconds > kLong_seconds && !std::exchange(told, true)) operation.tell(*standing, begin);
    if (limit_seconds > 0 && waited_seconds > limit_seconds) return false;
    sched_yield();  // with more ranks than cores, the one we wait for may need this core
  }
  if (told) standing->goes_on();
  return true;
}

void MpiEngine::wait(MpiOperation& operation) {
  if (poll_until(operation, options.time_limit_seconds)) return;
  std::string missing = operation.missing_ranks();
  if (options.on_timeout) options.on_timeout();
  give_up(operation);
  throw Error(ErrorKind::internal, fmt::format("comm timeout: {}: {} s passed without an answer of rank {}",
                                               operation.text(), options.time_limit_seconds, missing));
}

bool MpiEngine::wait_briefly(MpiOperation& operation) noexcept {
  return poll_until(operation, kBriefly_seconds);
}

void MpiEngine::give_up(MpiOperation& operation) noexcept {
  std::erase(active_, &operation);
  operation.cancel_receives();
  broken_ = true;
}

}  // namespace keel::comm
