#include "framework/ops/norm_cpu.h"

#include <cmath>

#include "framework/ops/support/partial_sums.h"
#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/norm_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/support/simd-inl.h"
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

struct RowStatistics {
  float mean = 0;
  float inverse = 1;
};

template <class X>
HWY_INLINE RowStatistics statistics_of(const X* x, const Parameters& p) {
  RowStatistics row;
  if (p.layer)
    row.mean =
        sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES { return hn::Add(sum, load(x + i, lanes)); }) /
        float(p.d);
  const Vec center = splat(row.mean);
  const float squares = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec centred = replace_tail(hn::Sub(load(x + i, lanes), center), 0, lanes);
    return hn::MulAdd(centred, centred, sum);
  });
  const float under_root = squares / float(p.d) + p.eps;
  row.inverse = under_root > 0 ? 1 / std::sqrt(under_root) : 0;
  return row;
}

template <class Y, class X>
HWY_INLINE void write_row(Y* y, const X* x, const RowStatistics& row, const Parameters& p) {
  const Vec center = splat(row.mean), factor = splat(row.inverse), offset = splat(p.offset);
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

// S1 = sum g and S2 = sum g * xhat, g = gain * dy.
struct RowSums {
  float first = 0;
  float second = 0;
};

// `few` takes dy * xhat, then dy where there is a bias.
template <class X, class Y>
HWY_INLINE RowSums add_sums(float* few, const Y* dy, const X* x, const RowStatistics& row, const Parameters& p) {
  const Vec center = splat(row.mean), factor = splat(row.inverse), offset = splat(p.offset);
  RowSums sums;
  sums.second = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    const Vec part = hn::Mul(load(dy + i, lanes), xhat);
    store(hn::Add(load(few + i, lanes), part), few + i, lanes);
    return hn::MulAdd(part, hn::Add(load(p.weight + i, lanes), offset), sum);
  });
  if (p.layer)
    sums.first = sum_over(p.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
      return hn::MulAdd(load(dy + i, lanes), hn::Add(load(p.weight + i, lanes), offset), sum);
    });
  float* d_bias = few + p.d;
  if (p.bias)
    for_vectors(p.d, [&](size_t i, auto lanes) KEEL_LANES {
      store(hn::Add(load(d_bias + i, lanes), load(dy + i, lanes)), d_bias + i, lanes);
    });
  return sums;
}

// dx = inverse * (g - (S1 + xhat * S2) / d), plus what dx held. The factors come as one struct per row.
struct RowGradient {
  RowStatistics row;
  RowSums sums;
  bool accumulate;
};

template <class X, class Y>
HWY_INLINE void write_gradient(X* dx, const Y* dy, const X* x, const RowGradient& gradient, const Parameters& p) {
  const Vec center = splat(gradient.row.mean), factor = splat(gradient.row.inverse), offset = splat(p.offset);
  const Vec first = splat(gradient.sums.first / float(p.d)), second = splat(gradient.sums.second / float(p.d));
  for_vectors(p.d, [&](size_t i, auto lanes) KEEL_LANES {
    const Vec xhat = hn::Mul(hn::Sub(load(x + i, lanes), center), factor);
    const Vec g = hn::Mul(load(dy + i, lanes), hn::Add(load(p.weight + i, lanes), offset));
    const Vec inner = hn::NegMulAdd(xhat, second, hn::Sub(g, first));
    const Vec before = gradient.accumulate ? load(dx + i, lanes) : zero();
    store(hn::MulAdd(inner, factor, before), dx + i, lanes);
  });
}

// f<X, Y>() for the element types of the residual stream and of the activations.
template <class F>
void dispatch_both(DType stream, DType activation, const F& f) {
  dispatch_float(stream,
                 [&]<class X>() { dispatch_float(activation, [&]<class Y>() { f.template operator()<X, Y>(); }); });
}

void forward_rows(const NormForward& call, int64_t begin, int64_t end) {
  const int64_t width = call.y.size(1);
  const Parameters p(call.weights, call.options, width);
  dispatch_both(call.x.dtype(), call.y.dtype(), [&]<class X, class Y>() {
    for (int64_t i = begin; i < end; ++i) {
      const X* x = call.x.as<X>() + i * width;
      if (call.sum.defined()) {
        X* sum = call.sum.as<X>() + i * width;
        add_row(sum, x, call.branch.as<Y>() + i * width, p.d);
        x = sum;
      }
      const RowStatistics row = statistics_of(x, p);
      write_row(call.y.as<Y>() + i * width, x, row, p);
      call.statistics.inverse.as<float>()[i] = row.inverse;
      if (p.layer) call.statistics.mean.as<float>()[i] = row.mean;
    }
  });
}

void backward_rows(const NormBackward& call, float* few, int64_t begin, int64_t end) {
  const int64_t width = call.x.size(1);
  const Parameters p(call.weights, call.options, width);
  dispatch_both(call.x.dtype(), call.dy.dtype(), [&]<class X, class Y>() {
    for (int64_t i = begin; i < end; ++i) {
      const X* x = call.x.as<X>() + i * width;
      const Y* dy = call.dy.as<Y>() + i * width;
      RowStatistics row{0, call.statistics.inverse.as<float>()[i]};
      if (p.layer) row.mean = call.statistics.mean.as<float>()[i];
      const RowSums sums = add_sums(few, dy, x, row, p);
      write_gradient(call.dx.as<X>() + i * width, dy, x, {row, sums, call.accumulate}, p);
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
int threads_for(const ConstTensor& x) {
  return parts_of(x.size(0), 16384 / std::max<int64_t>(x.size(1), 1));
}

// Of the sums over rows, by sizes only: ranks of a tensor group each sum the gradients of weights that all of them
// hold, and must get the same bits whatever threads they have.
int parts_for(const ConstTensor& x) {
  constexpr int64_t kRowsPerPart = 16, kMostParts = 64;
  return int(std::clamp<int64_t>(x.size(0) / kRowsPerPart, 1, kMostParts));
}

}  // namespace

void norm_forward(const NormForward& call) {
  for_parts(call.y.size(0), threads_for(call.y), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(call, begin, end);
  });
}

void norm_backward(const NormBackward& call) {
  static thread_local PartialSums::Memory memory;  // at most 24 D bytes per part
  const int64_t rows = call.x.size(0), width = call.x.size(1);
  const int parts = parts_for(call.x);
  const PartialSums sums(memory, (call.weights.bias.defined() ? 2 : 1) * width, parts);
  const auto run_part = [&](int part) {
    const int64_t end = rows * (part + 1) / parts;
    sums.begin(part);
    for (int64_t row = rows * part / parts; row < end; row += PartialSums::kRows) {
      HWY_DYNAMIC_DISPATCH(backward_rows)(call, sums.few(part), row, std::min(row + PartialSums::kRows, end));
      sums.flush(part);
    }
  };
  for_parts(parts, std::min(parts, threads_for(call.x)), [&](int, int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) run_part(int(part));
  });
  sums.add_to(call.gradients.d_weight, 0);
  sums.add_to(call.gradients.d_bias, width);
}

}  // namespace cpu
}  // namespace keel::ops
#endif
