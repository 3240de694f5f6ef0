#include <cmath>

#include "framework/ops/adamw_cuda.h"
#include "framework/ops/kernel.h"
#include "framework/ops/partial_sums_cuda.h"

// One pass: 16 bytes read per parameter, 12 written, and 2 more with a compute copy.
namespace keel::ops::cuda {
namespace {

struct Arrays {
  float *master, *moment1, *moment2;
  __nv_bfloat16* compute;  // null where there is none
  const float* gradient;
};

// Powers and differences are taken in double on the host and rounded once, as in the CPU twin.
struct Factors {
  float rate;      // lr / (1 - beta1^updates)
  float inverse2;  // 1 / (1 - beta2^updates)
  float beta1, rest1, beta2, rest2;
  float gradient_scale, eps, decay;
};

struct Element {
  float master, moment1, moment2;
};

// Every element sees the same operations, in a pack or alone, so that a slice has the whole's bits.
__device__ __forceinline__ Element updated(const Element& before, float gradient, const Factors& f) {
  const float g = gradient * f.gradient_scale;
  const float m = fmaf(f.beta1, before.moment1, f.rest1 * g);
  const float v = fmaf(f.beta2, before.moment2, f.rest2 * (g * g));
  const float denominator = sqrtf(v * f.inverse2) + f.eps;
  const float change = fmaf(f.decay, before.master, m * f.rate / denominator);
  return {before.master - change, m, v};
}

// partial [blocks] = each block's sum of squares of the change.
template <int N, bool kCopy>
__global__ void __launch_bounds__(kThreads) update(double* partial, Arrays a, Factors factors, int64_t n) {
  double squares = 0;
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float w[W], m[W], v[W], g[W];
    load(w, a.master + i);
    load(m, a.moment1 + i);
    load(v, a.moment2 + i);
    load(g, a.gradient + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const Element now = updated({w[j], m[j], v[j]}, g[j], factors);
      const float change = now.master - w[j];
      squares += double(change) * double(change);
      w[j] = now.master;
      m[j] = now.moment1;
      v[j] = now.moment2;
    }
    store(a.master + i, w);
    store(a.moment1 + i, m);
    store(a.moment2 + i, v);
    if constexpr (kCopy) store(a.compute + i, w);
  });
  squares = block_sum(squares, device::shared_memory<double>());
  if (device::thread_index().x == 0) partial[device::block_index().x] = squares;
}

Factors factors_of(const AdamwStep& step) {
  return {float(step.lr / (1 - std::pow(step.beta1, double(step.updates)))),
          float(1 / (1 - std::pow(step.beta2, double(step.updates)))),
          float(step.beta1),
          float(1 - step.beta1),
          float(step.beta2),
          float(1 - step.beta2),
          step.gradient_scale,
          step.eps,
          step.decay};
}

}  // namespace

double adamw(const AdamwState& state, ConstTensor gradient, const AdamwStep& step) {
  const int64_t n = gradient.elements();
  if (n == 0) return 0;
  const Device device = gradient.device();
  const int width = width_of(state.master, state.moment1, state.moment2, state.compute, gradient);
  const unsigned blocks = blocks_for(device, (n + width - 1) / width);
  const Arrays arrays{at<float>(state.master), at<float>(state.moment1), at<float>(state.moment2),
                      at<__nv_bfloat16>(state.compute), at<float>(gradient)};
  double* partial = partial_sums(device, blocks);
  dispatch_width(width, [&]<int N>() {
    launch(state.compute.defined() ? update<N, true> : update<N, false>, blocks, kThreads,
           kThreads / device::kWarp * sizeof(double), keel::cuda::current_stream(device), partial, arrays,
           factors_of(step), n);
  });
  return total_of_partial_sums(device, partial, blocks);
}

}  // namespace keel::ops::cuda
