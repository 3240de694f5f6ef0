// Starting kernels. tests/support/cuda_host/device holds the same headers for kernels that run on the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "framework/tensor/cuda_call.h"

namespace keel::device {

// What a block may have without opting in.
constexpr size_t kOrdinarySharedBytes = 48 << 10;

// Starts kernel(arguments...) on a stream; arguments are converted to the kernel's own parameter types. A grid without
// blocks is not started.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kOrdinarySharedBytes)
    KEEL_CUDA(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)));
  keel::cuda::limit_run_ahead(stream);
  [&](Parameters... values) {
    void* addresses[] = {static_cast<void*>(&values)...};
    KEEL_CUDA(cudaLaunchKernel(entry, grid, block, addresses, shared_bytes, stream));
  }(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}

}  // namespace keel::device
