#include "framework/ops/qk_norm/head_gains_cuda.h"
#include "framework/ops/support/kernel.h"

// A warp for each query head, which reads its gains and those of its key head: 8 H d bytes, in the caches.
namespace keel::ops::cuda {
namespace {

struct Weights {
  const float *q, *k, *scale;  // null: the layer has none
  bool q_shared, k_shared, scale_shared;
  int64_t heads, group, d;
  float shift, initial_scale, factor;
};

// max |row[i] + shift|, in all lanes; a NaN is left out, as on the CPU.
__device__ float largest_of_row(const float* row, int64_t d, float shift) {
  float largest = 0;
  for (int64_t i = device::lane(); i < d; i += device::kWarp) largest = fmaxf(largest, fabsf(row[i] + shift));
#pragma unroll
  for (unsigned bits = device::kWarp / 2; bits > 0; bits /= 2)
    largest = fmaxf(largest, device::shuffle_xor(largest, bits));
  return largest;
}

__global__ void __launch_bounds__(kThreads)
    gains_of_heads(float* q_gain, float* k_gain, float* scale, float* bound, Weights weights) {
  const int64_t h = (int64_t(device::block_index().x) * kThreads + device::thread_index().x) / device::kWarp;
  if (h >= weights.heads) return;  // all lanes of the warp
  const int64_t g = h / weights.group, d = weights.d;
  const float q = weights.q ? largest_of_row(weights.q + (weights.q_shared ? 0 : h * d), d, weights.shift) : 1.f;
  const float k = weights.k ? largest_of_row(weights.k + (weights.k_shared ? 0 : g * d), d, weights.shift) : 1.f;
  if (device::lane() != 0) return;
  const float w = weights.scale ? fabsf(weights.scale[weights.scale_shared ? 0 : h]) : 1.f;
  q_gain[h] = q;
  if (h % weights.group == 0) k_gain[g] = k;
  scale[h] = w * fabsf(weights.initial_scale);
  bound[h] = weights.factor > 0 ? weights.factor * w * q * k : INFINITY;
}

}  // namespace

void head_gains(const HeadGains& gains, const HeadGainWeights& weights) {
  const int64_t H = gains.q.elements(), d = weights.head_dim;
  const Weights device_weights{.q = at<float>(weights.q),
                               .k = at<float>(weights.k),
                               .scale = at<float>(weights.scale),
                               .q_shared = weights.q.elements() == d,
                               .k_shared = weights.k.elements() == d,
                               .scale_shared = weights.scale.elements() == 1,
                               .heads = H,
                               .group = H / gains.k.elements(),
                               .d = d,
                               .shift = weights.shift,
                               .initial_scale = weights.initial_scale,
                               .factor = weights.factor};
  constexpr int64_t kHeads = kThreads / device::kWarp;  // of a block
  launch(gains_of_heads, unsigned((H + kHeads - 1) / kHeads), kThreads, 0, keel::cuda::current_stream(gains.q.device()),
         at<float>(gains.q), at<float>(gains.k), at<float>(gains.scale), at<float>(gains.bound), device_weights);
}

}  // namespace keel::ops::cuda
