#include "framework/tensor/copy_cuda.h"

#include "framework/tensor/cuda_call.h"

namespace keel::cuda {

void copy_rows(const CopyRows& rows, Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  const auto queue = static_cast<cudaStream_t>(stream);
  limit_run_ahead(queue);
  if (rows.rows == 1) {
    KEEL_CUDA(cudaMemcpyAsync(rows.to, rows.from, size_t(rows.row_bytes), cudaMemcpyDefault, queue));
    return;
  }
  KEEL_CUDA(cudaMemcpy2DAsync(rows.to, size_t(rows.to_stride_bytes), rows.from, size_t(rows.from_stride_bytes),
                              size_t(rows.row_bytes), size_t(rows.rows), cudaMemcpyDefault, queue));
}

void zero(void* data, int64_t size_bytes, Device device, void* stream) {
  KEEL_CUDA(cudaSetDevice(device.index));
  limit_run_ahead(static_cast<cudaStream_t>(stream));
  KEEL_CUDA(cudaMemsetAsync(data, 0, size_t(size_bytes), static_cast<cudaStream_t>(stream)));
}

}  // namespace keel::cuda
