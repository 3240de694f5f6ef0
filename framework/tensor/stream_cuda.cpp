#include "framework/tensor/stream_cuda.h"

#include <sched.h>

#include <algorithm>
#include <vector>

#include "framework/tensor/buffer_cuda.h"
#include "framework/tensor/cuda_call.h"
#include "framework/tensor/stream.h"
#include "framework/tensor/wait_guard.h"

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
  int64_t size_bytes = 0;
  std::vector<std::byte*> data = {};  // the last is in use; a graph may have been recorded with those outgrown
};

// This thread's, each as long as its stream. Never destroyed: streams may end after a thread's other variables.
std::vector<Workspace>& workspaces() {
  thread_local auto* all = new std::vector<Workspace>();
  return *all;
}

}  // namespace

void* make_stream(Device device, bool urgent) {
  KEEL_CUDA(cudaSetDevice(device.index));
  int least = 0, greatest = 0;
  KEEL_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  KEEL_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return stream;
}

void destroy_stream(void* stream) {
  if (WaitGuard::gpu_left_running()) return;
  std::erase_if(workspaces(), [&](const Workspace& one) {
    if (one.stream != stream) return false;
    for (std::byte* data : one.data) release(data);
    return true;
  });
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

void limit_run_ahead(cudaStream_t stream) {
  // Of work that is started; the events and waits between streams, which are not counted, make it up to three times as
  // much. A driver's queue takes about 1,000.
  constexpr uint64_t kRound = 128;
  thread_local uint64_t started = 0;       // 2^31 are a few days
  thread_local cudaEvent_t marks[2] = {};  // live as long as the thread, as workspaces do
  if (!WaitGuard::any()) return;
  for (cudaEvent_t& mark : marks)
    if (!mark)
      KEEL_CUDA(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));  // at once: later, steps allocate nothing
  if (++started % kRound != 0) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  KEEL_CUDA(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;  // nothing runs yet
  const cudaEvent_t mark = marks[started / kRound % 2];
  while (!event_is_done(mark)) {  // recorded two rounds ago, or never
    WaitGuard::look_all();
    sched_yield();
  }
  KEEL_CUDA(cudaEventRecord(mark, stream));
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

size_t shared_bytes_per_multiprocessor(Device device) {
  return size_t(attribute(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor));
}

int blocks_per_multiprocessor(Device device, const void* kernel, int threads, size_t shared_bytes) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
  int blocks = 0;
  KEEL_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  return blocks;
}

std::byte* workspace(Device device, int64_t size_bytes) {
  const cudaStream_t stream = current_stream(device);
  std::vector<Workspace>& all = workspaces();
  auto found =
      std::ranges::find_if(all, [&](const Workspace& one) { return one.device == device && one.stream == stream; });
  if (found == all.end()) found = all.insert(all.end(), Workspace{device, stream});
  if (found->data.empty() || found->size_bytes < size_bytes) {
    found->size_bytes = (size_bytes + 255) / 256 * 256;
    found->data.push_back(allocate(device, found->size_bytes));
  }
  return found->data.back();
}

}  // namespace keel::cuda
