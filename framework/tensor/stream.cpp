#include "framework/tensor/stream.h"

#include "framework/tensor/stream_cuda.h"

namespace keel {
namespace {

thread_local const Stream* innermost = nullptr;

bool is_cuda(Device device) {
  return device.kind == DeviceKind::cuda;
}

}  // namespace

Stream::Stream(Device device) : device_(device) {
  if (is_cuda(device)) native_.reset(cuda::make_stream(device));
}

void Stream::Free::operator()(void* native) const {
  cuda::destroy_stream(native);
}

void Stream::synchronize() const {
  if (is_cuda(device_)) cuda::synchronize_stream(native());
}

void Stream::wait(const Event& event) const {
  if (is_cuda(device_) && event.native()) cuda::stream_wait(native(), event.native());
}

const Stream& Stream::current(Device device) {
  if (innermost && innermost->device_ == device) return *innermost;
  thread_local Stream ordinary{Device{}};  // no handle: the default stream of whichever device
  ordinary.device_ = device;
  return ordinary;
}

Event::Event(Device device) {
  if (is_cuda(device)) native_.reset(cuda::make_event(device));
}

void Event::Free::operator()(void* native) const {
  cuda::destroy_event(native);
}

void Event::record(const Stream& stream) {
  if (native_) cuda::record_event(native(), stream.native());
}

bool Event::done() const {
  return !native_ || cuda::event_is_done(native());
}

void Event::synchronize() const {
  if (native_) cuda::synchronize_event(native());
}

StreamScope::StreamScope(const Stream& stream) : outer_(innermost) {
  innermost = &stream;
}

StreamScope::~StreamScope() {
  innermost = outer_;
}

}  // namespace keel
