// Started verbs over NCCL: one channel per group of ranks, with its own stream; channels split from one another are a
// family, which fails as one.
#pragma once

#include <nccl.h>

#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <source_location>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/comm/label.h"
#include "framework/tensor/stream.h"
#include "framework/tensor/wait_guard.h"

namespace keel::comm {

// KEEL_NCCL(ncclGroupStart()): throws an internal error with NCCL's own words where the call fails. A call that is
// still in progress has not failed.
void check_nccl(ncclResult_t result, const char* call, std::source_location where = std::source_location::current());
#define KEEL_NCCL(call) ::keel::comm::check_nccl((call), #call)

// Calls between here and end() are one.
class NcclGroup {
 public:
  NcclGroup() { KEEL_NCCL(ncclGroupStart()); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (!ended_) ncclGroupEnd();  // while an exception passes
  }
  void end() {
    ended_ = true;
    KEEL_NCCL(ncclGroupEnd());
  }

 private:
  bool ended_ = false;
};

class NcclChannel;

class NcclFamily final : public WaitGuard {
 public:
  NcclFamily(Device device, double limit_seconds, std::shared_ptr<Standing> standing, std::function<void()> on_timeout)
      : device(device),
        time_limit_seconds(limit_seconds),
        on_timeout(std::move(on_timeout)),
        standing_(std::move(standing)) {}

  const Device device;
  double time_limit_seconds;
  const std::function<void()> on_timeout;  // may be empty

  // Throws where a verb failed or takes too long; one that takes a while already is where this rank stands.
  void look() override;
  // Gives verbs in flight a second to end; then aborts all.
  void unwind() noexcept override;
  bool at_rest() override;

  void enlist(NcclChannel& channel) { channels_.push_back(&channel); }
  void strike(NcclChannel& channel) { std::erase(channels_, &channel); }
  void abort_all() noexcept;
  bool broken() const { return broken_; }
  // Throws what a destructor could not, or that everything was aborted.
  void require_whole();
  void keep(std::exception_ptr error) { kept_ = error; }

 private:
  std::shared_ptr<Standing> standing_;
  std::vector<NcclChannel*> channels_;
  std::exception_ptr kept_;
  bool broken_ = false;
  Clock::time_point told_ = {};  // of which wait, by its begin; none: the clock's own begin
};

// A send or a receive that waits for those that belong to it.
struct NcclMessage {
  bool leaves = false;
  void* data = nullptr;
  size_t elements = 0;
  ncclDataType_t type = ncclFloat32;
  int peer = 0;
};

class NcclOperation final : public Operation {
 public:
  NcclOperation(NcclChannel& channel, Device device) : channel_(channel), done_(device) {}

  bool test() override;
  void finish() override;
  void release() noexcept override;

  Clock::time_point started() const { return started_; }
  void tell(Standing& standing) const;

 private:
  friend class NcclChannel;

  NcclChannel& channel_;
  Label label_;
  NcclMessage message_;
  Event done_;
  Clock::time_point started_;
  bool held_ = false;     // by a request
  bool waiting_ = false;  // a message that does not move yet
  bool ended_ = true;     // on the GPU, as far as the host has seen
};

class NcclChannel {
 public:
  NcclChannel(std::shared_ptr<NcclFamily> family, Place place);
  // Ends together with the other ranks' channels where all is well.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  // Meets the other ranks, which have the same id. Collective.
  void connect(const ncclUniqueId& id);

  // A verb: begin, NCCL calls and kernels on stream(), end.
  NcclOperation& begin(const Label& label);
  // Makes NCCL calls and returns when they are on the stream.
  template <class Calls>
  void call(const Label& label, const Calls& calls) {
    try {
      calls(comm_, static_cast<cudaStream_t>(stream_.native()));
    } catch (const Error& error) {
      fail(label, error);
    }
    settle(label, family_->time_limit_seconds);
  }
  Request end(NcclOperation& operation);
  Request end_later(NcclOperation& operation, const NcclMessage& message);

  const Stream& stream() const { return stream_; }
  NcclFamily& family() { return *family_; }
  const NcclFamily& family() const { return *family_; }
  std::shared_ptr<NcclFamily> shared_family() { return family_; }

  // Ends all with the error that is being handled.
  [[noreturn]] void fail(const Label& label, const Error& error) { fail("NCCL failure", label, error.what()); }
  void send_messages();
  // Throws as NcclFamily::look does.
  void look();
  // Null where nothing is in flight.
  const NcclOperation* oldest_in_flight();
  bool ends_within(double seconds) noexcept;
  // Starts to stop what runs on the GPU; true once that has come to its end.
  std::shared_ptr<const std::atomic<bool>> start_abort() noexcept;

 private:
  friend class NcclOperation;

  NcclOperation& take();
  void start(NcclOperation& operation);
  ncclResult_t state(const Label& label);
  void settle(const Label& label, double limit_seconds);
  void close();
  [[noreturn]] void fail(const char* kind, const Label& label, const std::string& what);
  [[noreturn]] void fail_late(const Label& label, double limit_seconds);

  std::shared_ptr<NcclFamily> family_;
  Place place_;
  Stream stream_;
  Event ready_;
  ncclComm_t comm_ = nullptr;
  std::list<NcclOperation> operations_;  // in the order they were started
  int64_t held_ = 0;                     // by requests
};

}  // namespace keel::comm
