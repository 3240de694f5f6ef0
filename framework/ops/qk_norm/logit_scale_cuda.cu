#include "framework/ops/qk_norm/logit_scale_cuda.h"
#include "framework/ops/support/kernel.h"

// A few dozen numbers: one warp.
namespace keel::ops::cuda {
namespace {

__global__ void __launch_bounds__(device::kWarp)
    scales_of_heads(float* g, const float* w, float g0, int64_t heads, bool shared) {
  for (int64_t h = device::thread_index().x; h < heads; h += device::kWarp) g[h] = w ? g0 * w[shared ? 0 : h] : g0;
}

// A shared weight takes the heads' parts one after the other, as the CPU twin does.
__global__ void __launch_bounds__(device::kWarp)
    gradients_of_scales(float* dw, const float* dg, float g0, int64_t heads, bool shared) {
  const int64_t first = device::thread_index().x;
  if (!shared)
    for (int64_t h = first; h < heads; h += device::kWarp) dw[h] += g0 * dg[h];
  if (!shared || first != 0) return;
  float sum = dw[0];
  for (int64_t h = 0; h < heads; ++h) sum += g0 * dg[h];
  dw[0] = sum;
}

}  // namespace

void logit_scale_forward(Tensor g, ConstTensor w, float g0) {
  launch(scales_of_heads, 1, device::kWarp, 0, keel::cuda::current_stream(g.device()), at<float>(g), at<float>(w), g0,
         g.elements(), w.defined() && w.elements() == 1);
}

void logit_scale_backward(Tensor dw, ConstTensor dg, float g0) {
  launch(gradients_of_scales, 1, device::kWarp, 0, keel::cuda::current_stream(dw.device()), at<float>(dw),
         at<float>(dg), g0, dg.elements(), dw.elements() == 1);
}

}  // namespace keel::ops::cuda
