#include "framework/tensor/stream_cuda.h"

#include <algorithm>
#include <vector>

#include "framework/tensor/cuda_call.h"
#include "framework/tensor/stream.h"

namespace keel::cuda {
namespace {

cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

// The workspace of one thread on one stream.
struct Workspace {
  Device device;
  cudaStream_t stream;
  int64_t size_bytes;
  void* data;
};

}  // namespace

void* make_stream(Device device) {
  KEEL_CUDA(cudaSetDevice(device.index));
  cudaStream_t stream = nullptr;
  KEEL_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void destroy_stream(void* stream) {
  cudaStreamDestroy(as_stream(stream));
}

void synchronize_stream(Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaStreamSynchronize(as_stream(stream)));
}

bool stream_is_done(Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  const cudaError_t result = cudaStreamQuery(as_stream(stream));
  if (result == cudaErrorNotReady) return false;
  KEEL_CUDA(result);
  return true;
}

void stream_wait(Device device, void* stream, void* event) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}

void* make_event(Device device) {
  KEEL_CUDA(cudaSetDevice(device.index));
  cudaEvent_t event = nullptr;
  KEEL_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void destroy_event(void* event) {
  cudaEventDestroy(as_event(event));
}

void record_event(void* event, Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaEventRecord(as_event(event), as_stream(stream)));
}

bool event_is_done(void* event) {
  const cudaError_t result = cudaEventQuery(as_event(event));
  if (result == cudaErrorNotReady) return false;
  KEEL_CUDA(result);
  return true;
}

void synchronize_event(void* event) {
  KEEL_CUDA(cudaEventSynchronize(as_event(event)));
}

cudaStream_t current_stream(Device device) {
  KEEL_CUDA(cudaSetDevice(device.index));
  return as_stream(Stream::current(device).native());
}

static int attribute(Device device, cudaDeviceAttr which) {
  int value = 0;
  KEEL_CUDA(cudaDeviceGetAttribute(&value, which, device.index));
  return value;
}

int multiprocessors(Device device) {
  return attribute(device, cudaDevAttrMultiProcessorCount);
}

size_t shared_bytes_per_block(Device device) {
  return size_t(attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

std::byte* workspace(Device device, int64_t size_bytes) {
  thread_local std::vector<Workspace> all;  // lives as long as the thread; the driver frees what the process leaves
  const cudaStream_t stream = current_stream(device);
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const Workspace& one) { return one.device == device && one.stream == stream; });
  if (found == all.end()) found = all.insert(all.end(), Workspace{device, stream, 0, nullptr});
  if (found->size_bytes < size_bytes) {
    if (found->data) KEEL_CUDA(cudaFree(found->data));  // waits for what still uses it
    found->size_bytes = (size_bytes + 255) / 256 * 256;
    KEEL_CUDA(cudaMalloc(&found->data, size_t(found->size_bytes)));
  }
  return static_cast<std::byte*>(found->data);
}

}  // namespace keel::cuda
