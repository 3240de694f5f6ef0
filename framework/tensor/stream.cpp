#include "framework/tensor/stream.h"

#include <sched.h>

#include "framework/base/trace.h"
#include "framework/tensor/stream_cuda.h"
#include "framework/tensor/wait_guard.h"

namespace keel {
namespace {

thread_local const Stream* innermost = nullptr;

bool is_cuda(Device device) {
  return device.kind == DeviceKind::cuda;
}

// Until `done`, while the thread's guards look; at once where it has none.
template <class Done>
void wait_guarded(const Done& done) {
  while (WaitGuard::any() && !done()) {
    WaitGuard::look_all();
    sched_yield();
  }
}

}  // namespace

Stream::Stream(Device device, bool urgent) : device_(device) {
  if (is_cuda(device)) native_.reset(cuda::make_stream(device, urgent));
}

void Stream::Free::operator()(void* native) const {
  cuda::destroy_stream(native);
}

void Stream::synchronize() const {
  if (!is_cuda(device_)) return;
  const Span span("waiting for the GPU");
  wait_guarded([&] { return cuda::stream_is_done(device_, native()); });
  cuda::synchronize_stream(device_, native());
}

void Stream::wait(const Event& event) const {
  if (is_cuda(device_) && event.native()) cuda::stream_wait(device_, native(), event.native());
}

const Stream& Stream::current(Device device) {
  if (innermost && innermost->device_ == device) return *innermost;
  thread_local Stream ordinary{Device{}};  // no handle: the default stream of whichever device
  ordinary.device_ = device;
  return ordinary;
}

void Stream::finish(Device device) {
  if (!is_cuda(device)) return;
  wait_guarded([&] {
    return cuda::stream_is_done(device, current(device).native()) && cuda::stream_is_done(device, nullptr) &&
           WaitGuard::all_at_rest();
  });
}

Event::Event(Device device) {
  if (is_cuda(device)) native_.reset(cuda::make_event(device));
}

void Event::Free::operator()(void* native) const {
  cuda::destroy_event(native);
}

void Event::record(const Stream& stream) {
  if (native_) cuda::record_event(native(), stream.device(), stream.native());
}

bool Event::done() const {
  return !native_ || cuda::event_is_done(native());
}

void Event::synchronize() const {
  if (done()) return;  // no wait in a trace
  const Span span("waiting for the GPU");
  wait_guarded([&] { return done(); });
  cuda::synchronize_event(native());
}

StreamScope::StreamScope(const Stream& stream) : outer_(innermost) {
  innermost = &stream;
}

StreamScope::~StreamScope() {
  innermost = outer_;
}

}  // namespace keel
