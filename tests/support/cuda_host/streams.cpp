#include "tests/support/cuda_host/streams.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/launch.h"
#include "tests/support/cuda_host/settings.h"
#include "tests/support/cuda_host/stream_state.h"

namespace keel::cuda_host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPending = 1024;
constexpr int kGreatestPriority = -5;

// What lies here lives until the process ends: a thread that helps others along (advance_exchanges) may outlive
// everything else.
std::mutex& mutex = *new std::mutex;
auto& streams = *new std::map<CUstream_st*, std::unique_ptr<CUstream_st>>;
auto& default_streams = *new std::map<int, CUstream_st>;
auto& ended = *new std::set<std::unique_ptr<CUstream_st>>;  // events still point there
auto& events = *new std::map<CUevent_st*, std::unique_ptr<CUevent_st>>;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_now = 0;
thread_local int insides = 0;
bool exchanges_stopped = false;

// One turn of the stream's next piece of work; false when it waits for something else.
bool advance(CUstream_st& stream) {
  if (stream.work.empty() || (exchanges_stopped && stream.work.front().exchanges)) return false;
  const Inside inside;
  if (broken() == cudaSuccess && !stream.work.front().turn()) return false;
  stream.work.pop_front();
  ++stream.done;
  return true;
}

// Runs the stream's work up to `position`.
void drain(Lock& lock, CUstream_st& stream, uint64_t position) {
  while (stream.done < position) {
    if (advance(stream)) continue;
    lock.unlock();
    sched_yield();
    lock.lock();
  }
}

cudaError_t add(cudaStream_t stream, Piece piece) {
  const Inside inside;
  Lock lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  if (broken() != cudaSuccess) return with_error(broken());
  if (const cudaError_t error = check_takes_work(*queue); error != cudaSuccess) return error;
  if (queue->capture) return record(*queue, std::move(piece));
  // As the driver: what is started into a full queue waits for room.
  if (queue->work.size() >= kMostPending) drain(lock, *queue, queue->started - kMostPending + 1);
  queue->work.push_back(std::move(piece));
  ++queue->started;
  return cudaSuccess;
}

// The stream, where the host may wait for it or ask whether it is done.
cudaError_t stream_to_wait_for(CUstream_st*& queue, cudaStream_t stream, const char* call) {
  queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  if (queue->capture)
    return refuse(queue->capture.get(), cudaErrorStreamCaptureUnsupported,
                  std::string(call) + " of a stream that is captured");
  return check_takes_work(*queue);
}

cudaError_t check_event_to_wait_for(cudaEvent_t event, const char* call) {
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (!event->capture) return cudaSuccess;
  Capture* capture = event->capture->ended ? nullptr : event->capture.get();
  return refuse(capture, cudaErrorCapturedEvent, std::string(call) + " of an event that was recorded in a capture");
}

}  // namespace

std::mutex& stream_mutex() {
  return mutex;
}

CUstream_st* known(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    CUstream_st& ordinary = default_streams[device_now];
    ordinary.device = device_now;
    ordinary.is_default = true;
    return &ordinary;
  }
  auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second.get();
}

std::vector<CUstream_st*> all_streams() {
  std::vector<CUstream_st*> all;
  for (auto& [handle, stream] : streams) all.push_back(stream.get());
  return all;
}

Inside::Inside() {
  ++insides;
}
Inside::~Inside() {
  --insides;
}

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
  const Inside inside;
  auto turn = [work = std::move(work)] {
    work();
    return true;
  };
  return add(stream, {turn, false, Clock::now()});
}

cudaError_t enqueue_exchange(cudaStream_t stream, Turn turn) {
  return add(stream, {std::move(turn), true, Clock::now()});
}

cudaError_t launch_kernel(cudaStream_t stream, Kernel kernel) {
  const Inside inside;
  const cudaError_t error = check_launch(kernel);
  if (error != cudaSuccess) return with_error(error);
  return enqueue(stream, [kernel = std::move(kernel)] { execute(kernel); });
}

cudaError_t drain_all() {
  Lock lock(mutex);
  for (auto& [device, stream] : default_streams) drain(lock, stream, stream.started);
  for (auto& [handle, stream] : streams) drain(lock, *stream, stream->started);
  return with_error(broken());
}

void advance_exchanges(std::chrono::milliseconds patience) {
  Lock lock(mutex);
  const auto old = Clock::now() - patience;
  auto waits = [old](const Piece& piece) { return piece.exchanges && piece.since <= old; };
  for (auto& [handle, stream] : streams)
    while (std::any_of(stream->work.begin(), stream->work.end(), waits) && advance(*stream)) {
    }
}

void stop_exchanges() {
  Lock lock(mutex);
  exchanges_stopped = true;
}

int device_of_stream(cudaStream_t stream) {
  Lock lock(mutex);
  const CUstream_st* queue = known(stream);
  return queue ? queue->device : -1;
}

int current_device() {
  return device_now;
}
void set_current_device(int device) {
  device_now = device;
}

}  // namespace keel::cuda_host

using namespace keel::cuda_host;

extern "C" {

bool is_inside_cuda_host() {
  return insides > 0;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = kGreatestPriority;
  return with_error(broken());
}

// Kept and told, but without effect.
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  Lock lock(mutex);
  const CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  *priority = queue->priority;
  return with_error(broken());
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  Lock lock(mutex);
  auto owned = std::make_unique<CUstream_st>();
  owned->device = current_device();
  owned->priority = std::clamp(priority, kGreatestPriority, 0);
  *stream = owned.get();
  streams[*stream] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(mutex);
  if (!stream) return with_error(cudaErrorInvalidResourceHandle);
  CUstream_st* queue = nullptr;
  if (const cudaError_t error = stream_to_wait_for(queue, stream, "cudaStreamDestroy"); error != cudaSuccess)
    return error;
  drain(lock, *queue, queue->started);
  ended.insert(std::move(streams[stream]));
  streams.erase(stream);
  return with_error(broken());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = nullptr;
  if (const cudaError_t error = stream_to_wait_for(queue, stream, "cudaStreamSynchronize"); error != cudaSuccess)
    return error;
  drain(lock, *queue, queue->started);
  return with_error(broken());
}

// Never done by itself: a host that only asks would wait for ever, so each question lets the stream go on by one piece.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = nullptr;
  if (const cudaError_t error = stream_to_wait_for(queue, stream, "cudaStreamQuery"); error != cudaSuccess)
    return error;
  if (broken() != cudaSuccess) return with_error(broken());
  if (queue->done == queue->started) return cudaSuccess;
  advance(*queue);
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Inside inside;
  CUevent_st place;
  {
    Lock lock(mutex);
    CUstream_st* queue = known(stream);
    if (!queue || !events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
    place = *event;
    if (const cudaError_t error = check_takes_work(*queue); error != cudaSuccess) return error;
    if (!place.recorded) return cudaSuccess;
    if (queue->capture || place.capture) return wait_in_capture(*queue, place);
  }
  auto turn = [place] {
    while (place.stream->done < place.position)
      if (!advance(*place.stream)) return false;
    return true;
  };
  return add(stream, {turn, false, Clock::now()});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Lock lock(mutex);
  auto owned = std::make_unique<CUevent_st>();
  *event = owned.get();
  events[*event] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(mutex);
  return with_error(events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue || !events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = check_takes_work(*queue); error != cudaSuccess) return error;
  *event = {queue, queue->started, true, queue->capture, queue->after};
  return with_error(broken());
}

// As cudaStreamQuery.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(mutex);
  if (const cudaError_t error = check_event_to_wait_for(event, "cudaEventQuery"); error != cudaSuccess) return error;
  if (broken() != cudaSuccess) return with_error(broken());
  if (!event->recorded || event->stream->done >= event->position) return cudaSuccess;
  advance(*event->stream);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(mutex);
  if (const cudaError_t error = check_event_to_wait_for(event, "cudaEventSynchronize"); error != cudaSuccess)
    return error;
  if (event->recorded) drain(lock, *event->stream, event->position);
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
