#include "framework/tensor/buffer_cuda.h"

#include <cstring>

#include "framework/base/text.h"
#include "framework/tensor/cuda_call.h"
#include "framework/tensor/stream.h"
#include "framework/tensor/wait_guard.h"

namespace keel::cuda {

std::byte* allocate(Device device, int64_t size_bytes) {
  Stream::finish(device);
  KEEL_CUDA(cudaSetDevice(device.index));
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, size_t(size_bytes));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the next call must not see it again
    throw input_error("no memory for {} on {}: use fewer micro_sequences, more ranks or a smaller model",
                      human_bytes(double(size_bytes)), device.text());
  }
  KEEL_CUDA(result);
  KEEL_CUDA(cudaMemset(data, 0, size_t(size_bytes)));
  KEEL_CUDA(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
  return static_cast<std::byte*>(data);
}

// Owners end in destructors, where nothing may be thrown; a failure shows in the next call.
void release(std::byte* data) {
  if (WaitGuard::gpu_left_running()) return;
  cudaFree(data);
}

std::byte* allocate_pinned(Device device, int64_t size_bytes) {
  Stream::finish(device);
  KEEL_CUDA(cudaSetDevice(device.index));
  void* data = nullptr;
  KEEL_CUDA(cudaMallocHost(&data, size_t(size_bytes)));
  std::memset(data, 0, size_t(size_bytes));
  return static_cast<std::byte*>(data);
}

void release_pinned(std::byte* data) {
  if (WaitGuard::gpu_left_running()) return;
  cudaFreeHost(data);
}

}  // namespace keel::cuda
