#include "framework/ops/norm_cpu.h"

#include <cmath>

#include "framework/ops/partial_sums.h"
#include "framework/ops/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/norm_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/simd-inl.h"
// clang-format on

// A row comes from memory once and stays in the first-level cache for the passes over it.
HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

// What all rows of a call share.
struct Parameters {
  Parameters(const NormWeights& weights, const NormOptions& options, int64_t width)
      : weight(weights.weight.as<float>()),
        bias(weights.bias.defined() ? weights.bias.as<float>() : nullptr),
        offset(options.zero_centered ? 1.f : 0.f),
        eps(options.eps),
        layer(options.kind == NormKind::layer),
        d(size_t(width)) {}

  const float* weight;
  const float* bias;
  float offset;  // the gain is offset + weight
  float eps;
  bool layer;
  size_t d;
};

template <class X>
HWY_INLINE float row_mean(const X* x, size_t d) {
  const float sum =
      sum_over(d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES { return hn::Add(sum, load(x + i, lanes)); });
  return sum / float(d);
}

template <class X>
HWY_INLINE float row_inverse(const X* x, float mean, const Parameters& p) {
  const Vec center = splat(mean);
  const float squares = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec centred = replace_tail(hn::Sub(load(x + i, lanes), center), 0, lanes);
    return hn::MulAdd(centred, centred, sum);
  });
  const float under_root = squares / float(p.d) + p.eps;
  return under_root > 0 ? 1 / std::sqrt(under_root) : 0;
}

template <class Y, class X>
HWY_INLINE void write_row(Y* y, const X* x, float mean, float inverse, const Parameters& p) {
  const Vec center = splat(mean), factor = splat(inverse), offset = splat(p.offset);
  for_vectors(p.d, [&](size_t i, auto lanes) KEEL_LANES {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    const Vec gain = hn::Add(load(p.weight + i, lanes), offset);
    const Vec result = p.bias ? hn::MulAdd(xhat, gain, load(p.bias + i, lanes)) : hn::Mul(xhat, gain);
    store(result, y + i, lanes);
  });
}

template <class X, class Y>
HWY_INLINE void add_row(X* sum, const X* residual, const Y* branch, size_t d) {
  for_vectors(d, [&](size_t i, auto lanes) KEEL_LANES {
    store(hn::Add(load(residual + i, lanes), load(branch + i, lanes)), sum + i, lanes);
  });
}

// dx = inverse * (g - (S1 + xhat * S2) / d) with g = gain * dy, and `few` takes dy * xhat, then dy where there is a
// bias.
template <class X, class Y>
HWY_INLINE void backward_row(X* dx, const Y* dy, const X* x, const Parameters& p, float mean, float inverse, float* few,
                             bool accumulate) {
  const Vec center = splat(mean), factor = splat(inverse), offset = splat(p.offset);
  const float s2 = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    const Vec part = hn::Mul(load(dy + i, lanes), xhat);
    store(hn::Add(load(few + i, lanes), part), few + i, lanes);
    return hn::MulAdd(part, hn::Add(load(p.weight + i, lanes), offset), sum);
  });
  float s1 = 0;
  if (p.layer)
    s1 = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
      return hn::MulAdd(load(dy + i, lanes), hn::Add(load(p.weight + i, lanes), offset), sum);
    });
  if (p.bias)
    for_vectors(p.d, [&](size_t i, auto lanes) KEEL_LANES {
      float* d_bias = few + p.d + i;
      store(hn::Add(load(d_bias, lanes), load(dy + i, lanes)), d_bias, lanes);
    });
  const Vec first = splat(s1 / float(p.d)), second = splat(s2 / float(p.d));
  for_vectors(p.d, [&](size_t i, auto lanes) KEEL_LANES {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    const Vec g = hn::Mul(load(dy + i, lanes), hn::Add(load(p.weight + i, lanes), offset));
    const Vec inner = hn::NegMulAdd(xhat, second, hn::Sub(g, first));
    store(accumulate ? hn::MulAdd(inner, factor, load(dx + i, lanes)) : hn::Mul(inner, factor), dx + i, lanes);
  });
}

// f<X, Y>() for the element types of the residual stream and of the activations.
template <class F>
void dispatch_both(DType stream, DType activation, const F& f) {
  dispatch_float(stream,
                 [&]<class X>() { dispatch_float(activation, [&]<class Y>() { f.template operator()<X, Y>(); }); });
}

void forward_rows(const Tensor& y, const Tensor& sum, const NormStatistics& statistics, const ConstTensor& residual,
                  const ConstTensor& branch, const NormWeights& weights, const NormOptions& options) {
  const Parameters p(weights, options, y.size(1));
  dispatch_both(residual.dtype(), y.dtype(), [&]<class X, class Y>() {
    for (int64_t row = 0; row < y.size(0); ++row) {
      const int64_t at = row * y.size(1);
      const X* x = residual.as<X>() + at;
      if (sum.defined()) {
        add_row(sum.as<X>() + at, x, branch.as<Y>() + at, p.d);
        x = sum.as<X>() + at;
      }
      const float mean = p.layer ? row_mean(x, p.d) : 0;
      const float inverse = row_inverse(x, mean, p);
      write_row(y.as<Y>() + at, x, mean, inverse, p);
      statistics.inverse.as<float>()[row] = inverse;
      if (p.layer) statistics.mean.as<float>()[row] = mean;
    }
  });
}

void backward_rows(const Tensor& dx, float* few, const ConstTensor& dy, const ConstTensor& x,
                   const NormStatistics& statistics, const NormWeights& weights, const NormOptions& options,
                   bool accumulate) {
  const Parameters p(weights, options, x.size(1));
  dispatch_both(x.dtype(), dy.dtype(), [&]<class X, class Y>() {
    for (int64_t row = 0; row < x.size(0); ++row) {
      const int64_t at = row * x.size(1);
      const float mean = p.layer ? statistics.mean.as<float>()[row] : 0;
      backward_row(dx.as<X>() + at, dy.as<Y>() + at, x.as<X>() + at, p, mean, statistics.inverse.as<float>()[row], few,
                   accumulate);
    }
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops {
HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

namespace cpu {
namespace {

// A thread is worth 16k elements.
int parts_for(const ConstTensor& x) {
  return parts_of(x.size(0), 16384 / std::max<int64_t>(x.size(1), 1));
}

template <class Rows>
Rows rows_of(const Rows& x, int64_t begin, int64_t end) {
  return x.defined() ? x.slice(0, begin, end) : x;
}

NormStatistics rows_of(const NormStatistics& statistics, int64_t begin, int64_t end) {
  return {rows_of(statistics.inverse, begin, end), rows_of(statistics.mean, begin, end)};
}

}  // namespace

void norm_forward(Tensor y, Tensor sum, const NormStatistics& statistics, ConstTensor residual, ConstTensor branch,
                  const NormWeights& weights, const NormOptions& options) {
  for_parts(y.size(0), parts_for(y), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_rows)
    (rows_of(y, begin, end), rows_of(sum, begin, end), rows_of(statistics, begin, end), rows_of(residual, begin, end),
     rows_of(branch, begin, end), weights, options);
  });
}

void norm_backward(Tensor dx, const NormGradients& gradients, ConstTensor dy, ConstTensor x,
                   const NormStatistics& statistics, const NormWeights& weights, const NormOptions& options,
                   bool accumulate) {
  static thread_local PartialSums::Memory memory;  // at most 24 D bytes per thread of the loop
  const int64_t width = x.size(1);
  const int parts = parts_for(x);
  const PartialSums sums(memory, (weights.bias.defined() ? 2 : 1) * width, parts);
  for_parts(x.size(0), parts, [&](int part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += PartialSums::kRows) {
      const int64_t last = std::min(row + PartialSums::kRows, end);
      HWY_DYNAMIC_DISPATCH(backward_rows)
      (rows_of(dx, row, last), sums.few(part), rows_of(dy, row, last), rows_of(x, row, last),
       rows_of(statistics, row, last), weights, options, accumulate);
      sums.flush(part);
    }
  });
  sums.add_to(gradients.d_weight, 0);
  sums.add_to(gradients.d_bias, width);
}

}  // namespace cpu
}  // namespace keel::ops
#endif
