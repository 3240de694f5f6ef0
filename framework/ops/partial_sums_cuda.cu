#include "framework/ops/kernel.h"
#include "framework/ops/partial_sums_cuda.h"
#include "framework/tensor/buffer.h"

namespace keel::ops::cuda {
namespace {

// One block: each thread adds every 256th partial sum, then the block its threads'.
__global__ void __launch_bounds__(kThreads) add_partial_sums(double* total, const double* partial, int64_t count) {
  double own = 0;
  for (int64_t i = device::thread_index().x; i < count; i += kThreads) own += partial[i];
  own = block_sum(own, device::shared_memory<double>());
  if (device::thread_index().x == 0) *total = own;
}

}  // namespace

// One more for the total.
double* partial_sums(Device device, int64_t blocks) {
  return reinterpret_cast<double*>(keel::cuda::workspace(device, (blocks + 1) * int64_t(sizeof(double)))) + 1;
}

double total_of_partial_sums(Device device, const double* partial, int64_t blocks) {
  thread_local const Buffer host = Buffer::pinned(sizeof(double));
  const cudaStream_t stream = keel::cuda::current_stream(device);
  double* total = const_cast<double*>(partial) - 1;
  launch(add_partial_sums, 1, kThreads, kThreads / device::kWarp * sizeof(double), stream, total, partial, blocks);
  KEEL_CUDA(cudaMemcpyAsync(host.data(), total, sizeof(double), cudaMemcpyDeviceToHost, stream));
  KEEL_CUDA(cudaStreamSynchronize(stream));
  return *reinterpret_cast<const double*>(host.data());
}

}  // namespace keel::ops::cuda
