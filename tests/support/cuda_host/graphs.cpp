// Stream capture and graphs. A graph runs its work in an order that keeps to what was recorded and to nothing else: of
// what a node comes after, its own stream comes first, so that the work of other streams comes as late as it may.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>

#include "tests/support/cuda_host/stream_state.h"

struct CUgraph_st {
  std::vector<keel::cuda_host::Turn> work;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<keel::cuda_host::Turn>> work;
};

namespace keel::cuda_host {
namespace {

auto& graphs = *new std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>>;
auto& executables = *new std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>>;
thread_local std::shared_ptr<Capture> capturing;  // begun by this thread
thread_local std::string last_refusal;

// Of the nodes that `last` come after, with themselves, each behind what it comes after.
std::vector<size_t> order_of(const Capture& capture, const Places& last) {
  struct Visit {
    size_t node, next;
  };
  std::vector<size_t> order;
  std::vector<bool> seen(capture.nodes.size());
  std::vector<Visit> path;
  for (size_t root : last) {
    if (!seen[root]) path.push_back({root, 0}), seen[root] = true;
    while (!path.empty()) {
      Visit& visit = path.back();
      const Places& after = capture.nodes[visit.node].after;
      if (visit.next == after.size()) {
        order.push_back(visit.node);
        path.pop_back();
      } else if (const size_t before = after[visit.next++]; !seen[before]) {
        seen[before] = true;
        path.push_back({before, 0});
      }
    }
  }
  return order;
}

void leave(const std::shared_ptr<Capture>& capture) {
  for (CUstream_st* stream : all_streams())
    if (stream->capture == capture) stream->capture.reset(), stream->after.clear();
  capture->ended = true;
  capturing.reset();
}

}  // namespace

cudaError_t refuse(Capture* capture, cudaError_t error, const std::string& sentence) {
  last_refusal = sentence;
  if (capture && capture->refused.empty()) capture->refused = sentence;
  return with_error(error);
}

std::string refusal() {
  return last_refusal;
}

cudaError_t refuse_while_capturing(const char* call) {
  if (!capturing) return cudaSuccess;
  return refuse(capturing.get(), cudaErrorStreamCaptureUnsupported,
                std::string(call) + " in a thread that captures a stream");
}

cudaError_t refuse_where_captured(cudaStream_t stream, const char* what) {
  Lock lock(stream_mutex());
  const CUstream_st* queue = known(stream);
  if (!queue || !queue->capture) return cudaSuccess;
  return refuse(queue->capture.get(), cudaErrorStreamCaptureUnsupported, std::string(what) + " in a capture");
}

cudaError_t check_takes_work(const CUstream_st& stream) {
  if (!capturing || !stream.is_default) return cudaSuccess;
  return refuse(capturing.get(), cudaErrorStreamCaptureImplicit,
                "the default stream is used in a thread that captures another one");
}

cudaError_t record(CUstream_st& stream, Piece piece) {
  Capture& capture = *stream.capture;
  if (!capture.refused.empty()) return refuse(&capture, cudaErrorStreamCaptureInvalidated, capture.refused);
  if (piece.exchanges)
    return refuse(&capture, cudaErrorStreamCaptureUnsupported, "a verb of NCCL in a capture, which is not simulated");
  capture.nodes.push_back({std::move(piece.turn), stream.after});
  stream.after = {capture.nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t wait_in_capture(CUstream_st& stream, const CUevent_st& event) {
  if (!event.capture)
    return refuse(stream.capture.get(), cudaErrorStreamCaptureIsolation,
                  "a captured stream waits for an event that was not recorded in the capture");
  if (event.capture->ended)
    return refuse(stream.capture.get(), cudaErrorCapturedEvent, "a wait for an event that was recorded in a capture");
  if (stream.capture && stream.capture != event.capture)
    return refuse(stream.capture.get(), cudaErrorStreamCaptureMerge, "two captures would become one");
  stream.capture = event.capture;
  for (size_t place : event.after)
    if (std::ranges::find(stream.after, place) == stream.after.end()) stream.after.push_back(place);
  return cudaSuccess;
}

}  // namespace keel::cuda_host

using namespace keel::cuda_host;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Inside inside;
  Lock lock(stream_mutex());
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  if (queue->is_default)
    return refuse(nullptr, cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
  if (mode != cudaStreamCaptureModeThreadLocal)
    return refuse(nullptr, cudaErrorInvalidValue, "only the thread-local mode of capture is simulated");
  if (queue->capture || capturing) return refuse(nullptr, cudaErrorIllegalState, "a capture within a capture");
  capturing = queue->capture = std::make_shared<Capture>(Capture{queue, std::this_thread::get_id(), {}, {}, false});
  return with_error(broken());
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Inside inside;
  Lock lock(stream_mutex());
  *graph = nullptr;
  CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = queue->capture;
  if (!capture) return refuse(nullptr, cudaErrorIllegalState, "the end of a capture that was not begun");
  if (capture->thread != std::this_thread::get_id())
    return refuse(capture.get(), cudaErrorStreamCaptureWrongThread, "a capture ends in another thread");
  if (capture->origin != queue)
    return refuse(capture.get(), cudaErrorStreamCaptureUnmatched, "a capture ends on another stream");
  const std::vector<size_t> order = order_of(*capture, queue->after);
  leave(capture);
  if (!capture->refused.empty()) return refuse(nullptr, cudaErrorStreamCaptureInvalidated, capture->refused);
  if (order.size() < capture->nodes.size())
    return refuse(nullptr, cudaErrorStreamCaptureUnjoined,
                  "a stream that joined the capture was not waited for at its end");
  auto owned = std::make_unique<CUgraph_st>();
  for (size_t node : order) owned->work.push_back(capture->nodes[node].turn);
  *graph = owned.get();
  graphs[*graph] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Lock lock(stream_mutex());
  const CUstream_st* queue = known(stream);
  if (!queue) return with_error(cudaErrorInvalidResourceHandle);
  *status = !queue->capture                   ? cudaStreamCaptureStatusNone
            : queue->capture->refused.empty() ? cudaStreamCaptureStatusActive
                                              : cudaStreamCaptureStatusInvalidated;
  return with_error(broken());
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const Inside inside;
  Lock lock(stream_mutex());
  if (!graphs.contains(graph)) return with_error(cudaErrorInvalidValue);
  auto owned = std::make_unique<CUgraphExec_st>();
  owned->work = std::make_shared<const std::vector<Turn>>(graph->work);
  *executable = owned.get();
  executables[*executable] = std::move(owned);
  return with_error(broken());
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Lock lock(stream_mutex());
  return with_error(graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue);
}

// What was launched still runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Lock lock(stream_mutex());
  return with_error(executables.erase(executable) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Inside inside;
  std::shared_ptr<const std::vector<Turn>> work;
  {
    Lock lock(stream_mutex());
    if (!executables.contains(executable)) return with_error(cudaErrorInvalidValue);
    work = executable->work;
  }
  if (const cudaError_t error = refuse_where_captured(stream, "another graph"); error != cudaSuccess) return error;
  return enqueue(stream, [work] {
    for (const Turn& turn : *work)
      if (broken() == cudaSuccess) turn();
  });
}

}  // extern "C"
