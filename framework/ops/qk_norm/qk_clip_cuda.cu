#include "framework/ops/qk_norm/qk_clip_cuda.h"
#include "framework/ops/support/kernel.h"

// After the update, on small tensors; the rows of a query weight are the largest: 4 bytes read and 4 written each.
namespace keel::ops::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    factors_of(float* factors, const float* largest, const float* gate, float tau, int64_t n) {
  const bool made = gate[1] != 0;
  for_elements<1>(n, [&](int64_t i, auto) { factors[i] = made && largest[i] > tau ? tau / largest[i] : 1.f; });
}

__global__ void __launch_bounds__(kThreads)
    smallest_of(float* smallest, const float* x, int64_t rows, int64_t columns) {
  for_elements<1>(rows, [&](int64_t row, auto) {
    float least = x[row * columns];
    for (int64_t i = 1; i < columns; ++i) least = fminf(least, x[row * columns + i]);
    smallest[row] = least;
  });
}

struct RowFactors {
  const float* data;
  bool one;  // for all rows
};
template <int N>
__global__ void __launch_bounds__(kThreads)
    scale(float* weights, RowFactors factors, float shift, int64_t rows, int64_t columns) {
  const int64_t packs = columns / N;
  for_elements<1>(rows * packs, [&](int64_t pack, auto) {
    const float c = factors.data[factors.one ? 0 : pack / packs];
    if (c == 1) return;  // 1 + w - 1 would round
    float w[N];
    load(w, weights + pack * N);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = c * (w[j] + shift) - shift;
    store(weights + pack * N, w);
  });
}

__global__ void __launch_bounds__(kThreads) clamp_flat(float* weights, float low, float high, int64_t n) {
  for_elements<1>(n, [&](int64_t i, auto) {
    const float w = weights[i];
    weights[i] = w < low ? low : w > high ? high : w;  // NaN stays
  });
}

}  // namespace

void qk_clip_factors(Tensor factors, ConstTensor largest, ConstTensor gate, double tau) {
  const Device device = factors.device();
  launch(factors_of, blocks_for(device, factors.elements()), kThreads, 0, keel::cuda::current_stream(device),
         at<float>(factors), at<float>(largest), at<float>(gate), float(tau), factors.elements());
}

void smallest_of_rows(Tensor smallest, ConstTensor x) {
  const Device device = x.device();
  launch(smallest_of, blocks_for(device, x.size(0)), kThreads, 0, keel::cuda::current_stream(device),
         at<float>(smallest), at<float>(x), x.size(0), x.size(1));
}

void scale_rows(Tensor weights, ConstTensor factors, float shift) {
  const Device device = weights.device();
  dispatch_width(row_width_of(weights), [&]<int N>() {
    launch(scale<N>, blocks_for(device, weights.elements() / N), kThreads, 0, keel::cuda::current_stream(device),
           at<float>(weights), RowFactors{at<float>(factors), factors.elements() == 1}, shift, weights.size(0),
           weights.size(1));
  });
}

void clamp(Tensor weights, float low, float high) {
  const Device device = weights.device();
  launch(clamp_flat, blocks_for(device, weights.elements()), kThreads, 0, keel::cuda::current_stream(device),
         at<float>(weights), low, high, weights.elements());
}

}  // namespace keel::ops::cuda
