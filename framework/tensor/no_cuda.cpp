// Stands in the place of the *_cuda.cpp files in a build without CUDA.
#include "framework/base/error.h"
#include "framework/tensor/buffer_cuda.h"
#include "framework/tensor/copy_cuda.h"
#include "framework/tensor/gpu.h"
#include "framework/tensor/graph_cuda.h"
#include "framework/tensor/stream_cuda.h"

namespace keel::cuda {
namespace {

[[noreturn]] void refuse() {
  throw input_error("this build has no CUDA: configure with the preset cuda, or choose device: cpu");
}

}  // namespace

std::byte* allocate(Device, int64_t) {
  refuse();
}
void release(std::byte*) {}
std::byte* allocate_pinned(Device, int64_t) {
  refuse();
}
void release_pinned(std::byte*) {}

void copy_rows(const CopyRows&, Device, void*) {
  refuse();
}
void zero(void*, int64_t, Device, void*) {
  refuse();
}

void* make_stream(Device, bool) {
  refuse();
}
void destroy_stream(void*) {}
void synchronize_stream(Device, void*) {
  refuse();
}
bool stream_is_done(Device, void*) {
  refuse();
}
void stream_wait(Device, void*, void*) {
  refuse();
}

void* make_event(Device) {
  refuse();
}
void destroy_event(void*) {}
void record_event(void*, Device, void*) {
  refuse();
}
bool event_is_done(void*) {
  refuse();
}
void synchronize_event(void*) {
  refuse();
}

void begin_recording(Device, void*) {
  refuse();
}
void* end_recording(void*) {
  refuse();
}
void give_up_recording(void*) {}
void launch_graph(void*, Device, void*) {
  refuse();
}
void destroy_graph(void*) {}

int gpu_count() {
  return 0;
}
std::string old_driver() {
  return {};
}
Gpu describe_gpu(int) {
  refuse();
}
int64_t free_memory_bytes(int) {
  refuse();
}
std::string cuda_versions() {
  return {};
}

}  // namespace keel::cuda
