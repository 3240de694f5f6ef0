// The one thread of a process that makes HDF5 calls. HDF5 as distributions build it is not thread-safe, so every call
// of checkpoints, telemetry and loading runs here; other threads hand over jobs, with the buffers these need.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace keel::io {

// The permission to use HDF5. Only the I/O thread has one, and lends it to each job: io::File cannot be made without.
class IoContext {
 public:
  IoContext(const IoContext&) = delete;
  IoContext& operator=(const IoContext&) = delete;

 private:
  friend class IoThread;
  IoContext() = default;
};

// Whether the caller runs inside a job of an IoThread.
bool on_io_thread();

// What a failed job threw, until a Future or IoThread::check() has handed it to somebody.
struct Failure {
  std::exception_ptr error;
  std::atomic<bool> taken = false;
};

// The value a submitted job will return.
template <class T>
class Future {
 public:
  Future(std::future<T> value, std::shared_ptr<Failure> failure)
      : value_(std::move(value)), failure_(std::move(failure)) {}
  // Waits; once only. Rethrows what the job threw, which check() then no longer reports.
  T get() {
    failure_->taken = true;
    return value_.get();
  }
  // Whether it came to its end within that time.
  bool wait_within(double seconds) const {
    return value_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
  }

 private:
  std::future<T> value_;
  std::shared_ptr<Failure> failure_;
};

// How much may wait (the running job included) before submit() blocks.
struct QueueLimits {
  size_t jobs = 64;
  uint64_t bytes = uint64_t(1) << 30;
};

class IoThread {
 public:
  // One at a time per process: a second one while the first lives is an internal error.
  explicit IoThread(QueueLimits limits = {});
  // Runs what is queued, then ends. A failure that nobody asked for by then is logged.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Queues `job(IoContext&)`, any movable callable; jobs run in order, one at a time, and are destroyed on the I/O
  // thread. `bytes` is what the job holds: submit blocks while the queue is full, but a job above the limit passes
  // when nothing else waits. A failure reaches whoever calls get() on the Future, else whoever calls check() next.
  template <class Job>
  auto submit(Job job, uint64_t bytes = 0) -> Future<std::invoke_result_t<Job&, IoContext&>> {
    return submit_job(std::move(job), bytes, false);
  }
  // The same where get() will be called for certain: check(), which another thread may call, never takes its failure.
  template <class Job>
  auto submit_awaited(Job job) -> Future<std::invoke_result_t<Job&, IoContext&>> {
    return submit_job(std::move(job), 0, true);
  }

  // Runs `job(IoContext&)` on the I/O thread, after those queued before, and waits: its value, or its exception.
  template <class Job>
  auto run(Job&& job) -> std::invoke_result_t<Job&, IoContext&> {
    return submit_awaited([&job](IoContext& context) -> decltype(auto) { return job(context); }).get();
  }

  // Rethrows the oldest failure of a job whose Future was not asked; each is reported once.
  void check();

 private:
  using Task = std::packaged_task<void(IoContext&)>;  // of the standard's, the callable wrapper that is move-only
  struct Entry {
    Task task;
    uint64_t bytes;
  };

  template <class Job>
  auto submit_job(Job job, uint64_t bytes, bool awaited) -> Future<std::invoke_result_t<Job&, IoContext&>>;
  void enqueue(Entry entry);
  void start();
  void work();
  void record(std::shared_ptr<Failure> failure);

  const QueueLimits limits_;
  std::mutex mutex_;
  std::condition_variable room_, arrived_;
  std::deque<Entry> queue_;
  size_t pending_jobs_ = 0;  // queued and running
  uint64_t pending_bytes_ = 0;
  bool closing_ = false;
  std::deque<std::shared_ptr<Failure>> failures_;
  std::thread thread_;
};

template <class Job>
auto IoThread::submit_job(Job job, uint64_t bytes, bool awaited) -> Future<std::invoke_result_t<Job&, IoContext&>> {
  using Value = std::invoke_result_t<Job&, IoContext&>;
  std::promise<Value> promise;
  auto failure = std::make_shared<Failure>();
  failure->taken = awaited;
  Future<Value> future(promise.get_future(), failure);
  auto task = [this, job = std::move(job), promise = std::move(promise), failure](IoContext& context) mutable {
    try {
      if constexpr (std::is_void_v<Value>) {
        job(context);
        promise.set_value();
      } else {
        promise.set_value(job(context));
      }
    } catch (...) {
      failure->error = std::current_exception();
      record(failure);
      promise.set_exception(failure->error);
    }
  };
  enqueue({Task(std::move(task)), bytes});
  return future;
}

}  // namespace keel::io
