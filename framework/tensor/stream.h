// Streams and events. What is started on a stream runs in the order it was started, while the host goes on; an event
// marks a place in a stream for others to wait at. On the CPU and on meta everything has happened when a call returns.
//
//   Stream side(device);
//   Event ready(device);
//   ready.record(Stream::current(device));
//   side.wait(ready);                          // what follows on `side` starts after what came before `ready`
//   StreamScope scope(side);                   // this thread's ops and copies go to `side` until the scope ends
#pragma once

#include <memory>

#include "framework/tensor/device.h"

namespace keel {

class Event;

class Stream {
 public:
  // `urgent`: where a GPU's work of several streams waits for room, this stream's comes first.
  explicit Stream(Device device, bool urgent = false);

  Device device() const { return device_; }
  void synchronize() const;
  void wait(const Event& event) const;
  // CUDA's handle (cudaStream_t); null on other devices and for the device's default stream.
  void* native() const { return native_.get(); }
  // The innermost StreamScope of the calling thread, or the device's default stream.
  static const Stream& current(Device device);
  // Before memory of a GPU is taken or given back, for which CUDA may wait where no guard looks (wait_guard.h): waits
  // until what was started on the current and on the default stream, and what guards look after elsewhere, is done.
  // Nothing where the thread has no guards.
  static void finish(Device device);

 private:
  struct Free {
    void operator()(void* native) const;
  };
  Device device_;
  std::unique_ptr<void, Free> native_;
};

class Event {
 public:
  explicit Event(Device device);

  void record(const Stream& stream);
  // Whether everything before the last record() is done.
  bool done() const;
  void synchronize() const;
  void* native() const { return native_.get(); }

 private:
  struct Free {
    void operator()(void* native) const;
  };
  std::unique_ptr<void, Free> native_;
};

class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  const Stream* outer_;
};

}  // namespace keel
