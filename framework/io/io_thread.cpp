#include "framework/io/io_thread.h"

#include "framework/base/error.h"
#include "framework/base/log.h"
#include "framework/base/trace.h"
#include "framework/io/hdf5_error.h"

namespace keel::io {
namespace {

thread_local bool this_is_an_io_thread = false;
std::atomic<bool> io_thread_lives = false;  // guards the promise that HDF5 is called from one thread

}  // namespace

bool on_io_thread() {
  return this_is_an_io_thread;
}

IoThread::IoThread(QueueLimits limits) : limits_(limits) {
  require(limits.jobs > 0, "an I/O queue needs room for a job");
  require(!io_thread_lives.exchange(true), "a second I/O thread: HDF5 may be called from one thread only");
  thread_ = std::thread([this] { work(); });
}

IoThread::~IoThread() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  arrived_.notify_all();
  thread_.join();
  io_thread_lives = false;
  try {
    check();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  } catch (...) {
    log::error("a job of the I/O thread failed");
  }
}

void IoThread::enqueue(Entry entry) {
  require(!on_io_thread(), "a job of the I/O thread waits for another one, which cannot start before it ends");
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] {
    return pending_jobs_ == 0 || (pending_jobs_ < limits_.jobs && entry.bytes <= limits_.bytes &&
                                  pending_bytes_ <= limits_.bytes - entry.bytes);
  });
  ++pending_jobs_;
  pending_bytes_ += entry.bytes;
  queue_.push_back(std::move(entry));
  arrived_.notify_one();
}

void IoThread::start() {
  try {
    start_hdf5();
  } catch (...) {
    auto failure = std::make_shared<Failure>();
    failure->error = std::current_exception();
    record(failure);
  }
}

void IoThread::work() {
  this_is_an_io_thread = true;
  trace::name_thread("I/O");
  start();
  IoContext context;
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    {
      const Span span("I/O job");
      entry.task(context);
    }
    entry.task = Task();  // the job's buffers and handles go now, here, before their bytes are given back
    lock.lock();
    --pending_jobs_;
    pending_bytes_ -= entry.bytes;
    room_.notify_all();
  }
}

void IoThread::record(std::shared_ptr<Failure> failure) {
  std::lock_guard lock(mutex_);
  std::erase_if(failures_, [](const auto& old) { return old->taken.load(); });
  failures_.push_back(std::move(failure));
}

void IoThread::check() {
  std::unique_lock lock(mutex_);
  while (!failures_.empty()) {
    auto failure = std::move(failures_.front());
    failures_.pop_front();
    if (failure->taken.exchange(true)) continue;
    lock.unlock();
    std::rethrow_exception(failure->error);
  }
}

}  // namespace keel::io
