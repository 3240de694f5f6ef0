#include "tests/support/cuda_host/streams.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/launch.h"

// CUDA declares its handles as pointers to these.
struct CUevent_st {
  CUstream_st* stream = nullptr;  // of the last record
  uint64_t position = 0;          // how much of that stream's work comes before it
  bool recorded = false;
};

struct CUstream_st {
  std::deque<keel::cuda_host::Work> work;
  uint64_t started = 0, done = 0;
};

namespace keel::cuda_host {
namespace {

// One for the process: streams are few and tests short. Recursive, since work may wait for another stream's.
std::recursive_mutex mutex;
std::map<CUstream_st*, std::unique_ptr<CUstream_st>> streams;
std::map<CUevent_st*, std::unique_ptr<CUevent_st>> events;
thread_local cudaError_t last_error = cudaSuccess;

CUstream_st* known(cudaStream_t stream) {
  static CUstream_st default_stream;
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return &default_stream;
  auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second.get();
}

// Runs the stream's work up to `position`.
void drain(CUstream_st& stream, uint64_t position) {
  while (stream.done < position && !stream.work.empty()) {
    Work work = std::move(stream.work.front());
    stream.work.pop_front();
    if (broken() == cudaSuccess) work();
    ++stream.done;
  }
}

}  // namespace

cudaError_t with_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t broken() {
  return recorded_fault().empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

void recover() {
  clear_fault();
  last_error = cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, Work work) {
  std::lock_guard lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  if (broken() != cudaSuccess) return with_error(broken());
  queue->work.push_back(std::move(work));
  ++queue->started;
  return cudaSuccess;
}

cudaError_t launch_kernel(cudaStream_t stream, Kernel kernel) {
  const cudaError_t error = check_launch(kernel);
  if (error != cudaSuccess) return with_error(error);
  return enqueue(stream, [kernel = std::move(kernel)] { execute(kernel); });
}

cudaError_t drain_all() {
  std::lock_guard lock(mutex);
  CUstream_st& ordinary = *known(nullptr);
  drain(ordinary, ordinary.started);
  for (auto& [handle, stream] : streams) drain(*stream, stream->started);
  return with_error(broken());
}

}  // namespace keel::cuda_host

using namespace keel::cuda_host;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  std::lock_guard lock(mutex);
  auto owned = std::make_unique<CUstream_st>();
  *stream = owned.get();
  streams[*stream] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue || !stream) return with_error(cudaErrorInvalidResourceHandle);
  drain(*queue, queue->started);
  streams.erase(stream);
  return with_error(broken());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  drain(*queue, queue->started);
  return with_error(broken());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  std::lock_guard lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  if (broken() != cudaSuccess) return with_error(broken());
  return queue->done == queue->started ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::lock_guard lock(mutex);
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (!event->recorded) return cudaSuccess;
  return enqueue(stream, [from = event->stream, position = event->position] {
    std::lock_guard lock(mutex);
    drain(*from, position);
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  std::lock_guard lock(mutex);
  auto owned = std::make_unique<CUevent_st>();
  *event = owned.get();
  events[*event] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::lock_guard lock(mutex);
  return with_error(events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue || !events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  *event = {queue, queue->started, true};
  return with_error(broken());
}

// Never done by itself: a host that only polls would wait for ever, so each query lets the stream go on by one piece.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard lock(mutex);
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (broken() != cudaSuccess) return with_error(broken());
  if (!event->recorded || event->stream->done >= event->position) return cudaSuccess;
  drain(*event->stream, event->stream->done + 1);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::lock_guard lock(mutex);
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (event->recorded) drain(*event->stream, event->position);
  return with_error(broken());
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = broken() != cudaSuccess ? broken() : last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return broken() != cudaSuccess ? broken() : last_error;
}

}  // extern "C"
