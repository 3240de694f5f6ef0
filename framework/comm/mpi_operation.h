// Started verbs over MPI: each is a coroutine that posts messages and is resumed when they have arrived.
#pragma once

#include <coroutine>
#include <exception>
#include <vector>

#include "framework/comm/label.h"
#include "framework/comm/mpi.h"
#include "framework/comm/standing.h"

namespace keel::comm {

class MpiOperation;

// What an algorithm returns. Its frame lies in its operation, so that starting a verb allocates nothing after first
// use.
struct Steps {
  struct promise_type {
    template <class... Rest>
    static void* operator new(size_t bytes, MpiOperation& operation, Rest&&...);
    static void operator delete(void*, size_t) {}
    Steps get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
    std::exception_ptr error;
  };
  std::coroutine_handle<promise_type> handle;
};

// One group of ranks as operations see it.
struct MpiGroup : Place {
  MPI_Comm comm = MPI_COMM_NULL;
};

class MpiEngine;

class MpiOperation final : public Operation {
 public:
  static constexpr int kBatches = 2;

  explicit MpiOperation(MpiEngine& engine) : engine_(engine) {}

  // For algorithms. Messages belong to one of kBatches batches; `co_await operation.arrival(batch)` continues when all
  // of that batch were sent and received. Messages of zero bytes are sent, too.
  int rank() const { return group_->rank; }
  int size() const { return group_->size; }
  const MpiOptions& options() const;
  void send(const void* data, int64_t bytes, int to, int batch = 0);
  void receive(void* data, int64_t bytes, int from, int batch = 0);
  // At least so many bytes, kept until the operation is recycled; contents undefined.
  std::byte* scratch(int64_t bytes);
  // An empty list that keeps its capacity.
  std::vector<const void*>& pointers();

  struct Arrival {
    MpiOperation& operation;
    int batch;
    bool await_ready() const { return operation.arrived(operation.batches_[batch]); }
    void await_suspend(std::coroutine_handle<>) const { operation.waiting_for_ = batch; }
    void await_resume() const {}
  };
  Arrival arrival(int batch = 0) { return {*this, batch}; }

  // For communicators: prepare(), then start(algorithm(operation, ...)).
  MpiOperation& prepare(const MpiGroup& group, int tag, const Label& label);
  Request start(Steps steps);

  bool test() override;
  void finish() override;
  void release() noexcept override;

 private:
  friend class MpiEngine;
  friend struct Steps::promise_type;

  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<MPI_Status> statuses;
    std::vector<int> peers;
    std::vector<int> expected_bytes;  // of a receive; kIsSend
    MPI_Request& add(int peer, int bytes);
    void clear();
  };
  static constexpr int kIsSend = -1;

  bool arrived(Batch& batch);
  void check_message(const Batch& batch, size_t index) const;
  bool advance() noexcept;  // true when something happened
  void recycle();
  void cancel_receives() noexcept;
  std::string missing_ranks();
  std::string text() const { return comm::text(*group_, label_); }
  // Has waited since then.
  void tell(Standing& standing, Clock::time_point begin) const { standing.waits_since(begin, *group_, label_); }

  MpiEngine& engine_;
  const MpiGroup* group_ = nullptr;
  int tag_ = 0;
  Label label_;
  Batch batches_[kBatches];
  int waiting_for_ = 0;
  std::coroutine_handle<Steps::promise_type> steps_;
  bool idle_ = true;
  bool ended_ = true;
  std::exception_ptr error_;
  std::vector<std::byte> frame_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> pointers_;
};

// The started operations of a family of communicators. A wait for one advances all, so waits may come in any order.
class MpiEngine {
 public:
  explicit MpiEngine(const MpiOptions& options) : options(options) {}

  MpiOperation& take();
  // Advances every started operation; true when something happened.
  bool poll() noexcept;
  void enlist(MpiOperation& operation) { active_.push_back(&operation); }
  // Until the operation has ended; gives it up and throws when the time limit passes.
  void wait(MpiOperation& operation);
  // While an exception passes: false when it did not end within a second.
  bool wait_briefly(MpiOperation& operation) noexcept;
  // Its buffers are about to go: no verb is possible after this.
  void give_up(MpiOperation& operation) noexcept;
  bool broken() const { return broken_; }
  // Keeps an error that a destructor could not throw, for the next verb.
  void keep(std::exception_ptr error) { kept_ = error; }

  MpiOptions options;
  const std::shared_ptr<Standing> standing = std::make_shared<Standing>();

 private:
  bool poll_until(MpiOperation& operation, double limit_seconds) noexcept;

  std::vector<std::unique_ptr<MpiOperation>> all_;
  std::vector<MpiOperation*> active_;
  std::exception_ptr kept_;
  bool broken_ = false;
};

template <class... Rest>
void* Steps::promise_type::operator new(size_t bytes, MpiOperation& operation, Rest&&...) {
  if (operation.frame_.size() < bytes) operation.frame_.resize(bytes);
  return operation.frame_.data();
}

}  // namespace keel::comm
