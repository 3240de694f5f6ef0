#include "tests/support/cuda_host/streams.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/launch.h"
#include "tests/support/cuda_host/settings.h"

// CUDA declares its handles as pointers to these.
struct CUevent_st {
  CUstream_st* stream = nullptr;  // of the last record
  uint64_t position = 0;          // how much of that stream's work comes before it
  bool recorded = false;
};

namespace keel::cuda_host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPending = 1024;

struct Piece {
  Turn turn;
  bool exchanges;  // with other processes, which cannot make this one wait for its stream
  Clock::time_point since;
};

}  // namespace
}  // namespace keel::cuda_host

struct CUstream_st {
  int device = 0;
  std::deque<keel::cuda_host::Piece> work;
  uint64_t started = 0, done = 0;
};

namespace keel::cuda_host {
namespace {

// Held while a piece of work runs, not while one waits for another process. What lies here lives until the process
// ends: a thread that helps others along (advance_exchanges) may outlive everything else.
std::mutex& mutex = *new std::mutex;
auto& streams = *new std::map<CUstream_st*, std::unique_ptr<CUstream_st>>;
auto& default_streams = *new std::map<int, CUstream_st>;
auto& ended = *new std::set<std::unique_ptr<CUstream_st>>;  // events still point there
auto& events = *new std::map<CUevent_st*, std::unique_ptr<CUevent_st>>;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_now = 0;
thread_local int insides = 0;

// Null is the default stream of the current device.
CUstream_st* known(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    CUstream_st& ordinary = default_streams[device_now];
    ordinary.device = device_now;
    return &ordinary;
  }
  auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second.get();
}

// One turn of the stream's next piece of work; false when it waits for something else.
bool advance(CUstream_st& stream) {
  if (stream.work.empty()) return false;
  const Inside inside;
  if (broken() == cudaSuccess && !stream.work.front().turn()) return false;
  stream.work.pop_front();
  ++stream.done;
  return true;
}

using Lock = std::unique_lock<std::mutex>;

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
  // As the driver: what is started into a full queue waits for room.
  if (queue->work.size() >= kMostPending) drain(lock, *queue, queue->started - kMostPending + 1);
  queue->work.push_back(std::move(piece));
  ++queue->started;
  return cudaSuccess;
}

}  // namespace

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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Lock lock(mutex);
  auto owned = std::make_unique<CUstream_st>();
  owned->device = current_device();
  *stream = owned.get();
  streams[*stream] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue || !stream) return with_error(cudaErrorInvalidResourceHandle);
  drain(lock, *queue, queue->started);
  ended.insert(std::move(streams[stream]));
  streams.erase(stream);
  return with_error(broken());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  drain(lock, *queue, queue->started);
  return with_error(broken());
}

// Never done by itself: a host that only asks would wait for ever, so each question lets the stream go on by one piece.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(mutex);
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
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
    if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
    place = *event;
  }
  if (!place.recorded) return cudaSuccess;
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
  *event = {queue, queue->started, true};
  return with_error(broken());
}

// As cudaStreamQuery.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(mutex);
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
  if (broken() != cudaSuccess) return with_error(broken());
  if (!event->recorded || event->stream->done >= event->position) return cudaSuccess;
  advance(*event->stream);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(mutex);
  if (!events.contains(event)) return with_error(cudaErrorInvalidResourceHandle);
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
