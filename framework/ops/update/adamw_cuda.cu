#include "framework/ops/support/kernel.h"
#include "framework/ops/support/partial_sums_cuda.h"
#include "framework/ops/update/adamw_cuda.h"

// One pass: 16 bytes read per parameter, 12 written, and 2 more with a compute copy.
namespace keel::ops::cuda {
namespace {

struct Arrays {
  float *master, *moment1, *moment2;
  __nv_bfloat16* compute;  // null where there is none
  const float* gradient;
};

struct Controls {
  const float *rates, *gate;
  float beta1, rest1, beta2, rest2, eps;
  bool decayed;
};

struct Factors {
  float rate;      // lr / (1 - beta1^updates)
  float inverse2;  // 1 / (1 - beta2^updates)
  float beta1, rest1, beta2, rest2;
  float gradient_scale, eps, decay;
};

__device__ __forceinline__ Factors factors_of(const Controls& c) {
  return {c.rates[0], c.rates[1], c.beta1, c.rest1, c.beta2, c.rest2, c.gate[0], c.eps, c.decayed ? c.rates[2] : 0.f};
}

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
__global__ void __launch_bounds__(kThreads) update(double* partial, Arrays a, Controls controls, int64_t n) {
  const Factors factors = factors_of(controls);
  if (controls.gate[1] == 0) n = 0;
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

Controls controls_of(const AdamwControls& controls, const AdamwOptions& options) {
  return {at<float>(controls.rates), at<float>(controls.gate), float(options.beta1), float(1 - options.beta1),
          float(options.beta2),      float(1 - options.beta2), float(options.eps),   controls.decayed};
}

}  // namespace

void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options) {
  const int64_t n = gradient.elements();
  if (n == 0) return;
  const Device device = gradient.device();
  const int width = width_of(state.master, state.moment1, state.moment2, state.compute, gradient);
  const unsigned blocks = blocks_for(device, (n + width - 1) / width);
  const Arrays arrays{at<float>(state.master), at<float>(state.moment1), at<float>(state.moment2),
                      at<__nv_bfloat16>(state.compute), at<float>(gradient)};
  double* partial = partial_sums(device, blocks);
  dispatch_width(width, [&]<int N>() {
    launch(state.compute.defined() ? update<N, true> : update<N, false>, blocks, kThreads,
           kThreads / device::kWarp * sizeof(double), keel::cuda::current_stream(device), partial, arrays,
           controls_of(controls, options), n);
  });
  add_partial_sums(change, partial, blocks);
}

}  // namespace keel::ops::cuda
