#include "framework/ops/kernel.h"
#include "framework/ops/partial_sums_cuda.h"

namespace keel::ops::cuda {
namespace {

// One block: each thread adds every 256th partial sum, then the block its threads'.
__global__ void __launch_bounds__(kThreads) add_up(double* total, const double* partial, int64_t count) {
  double own = 0;
  for (int64_t i = device::thread_index().x; i < count; i += kThreads) own += partial[i];
  own = block_sum(own, device::shared_memory<double>());
  if (device::thread_index().x == 0) *total += own;
}

}  // namespace

double* partial_sums(Device device, int64_t blocks) {
  return reinterpret_cast<double*>(keel::cuda::workspace(device, blocks * int64_t(sizeof(double))));
}

void add_partial_sums(Tensor total, const double* partial, int64_t blocks) {
  launch(add_up, 1, kThreads, kThreads / device::kWarp * sizeof(double), keel::cuda::current_stream(total.device()),
         at<double>(total), partial, blocks);
}

}  // namespace keel::ops::cuda
