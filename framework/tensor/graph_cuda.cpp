#include "framework/tensor/graph_cuda.h"

#include "framework/tensor/cuda_call.h"
#include "framework/tensor/wait_guard.h"

namespace keel::cuda {

// Other threads (saves in the background) may allocate and wait meanwhile.
void begin_recording(Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal));
}

void* end_recording(void* stream) {
  cudaGraph_t graph = nullptr;
  KEEL_CUDA(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  KEEL_CUDA(cudaGraphDestroy(graph));
  KEEL_CUDA(result);
  return executable;
}

// An exception is passing, which says what went wrong.
void give_up_recording(void* stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // the next call must not see it again
}

void launch_graph(void* graph, Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  KEEL_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream)));
}

void destroy_graph(void* graph) {
  if (WaitGuard::gpu_left_running()) return;
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace keel::cuda
