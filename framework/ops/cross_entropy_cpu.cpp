#include "framework/ops/cross_entropy_cpu.h"

#include <cmath>
#include <limits>

#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/cross_entropy_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/support/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 4096;  // columns that stay in the first-level cache between their maximum and their sum

// The real columns of this rank, [0, real), of `columns`.
size_t real_columns(int64_t columns, const CrossEntropyOptions& options) {
  return size_t(std::clamp<int64_t>(options.vocabulary - options.first_column, 0, columns));
}

// Where the target's column lies among this rank's real ones, or -1.
int64_t target_column(int32_t target, size_t real, const CrossEntropyOptions& options) {
  const int64_t column = target - options.first_column;
  return target >= 0 && column >= 0 && column < int64_t(real) ? column : -1;
}

HWY_INLINE void cap_row(float* logits, size_t n, float cap) {
  const Vec limit = splat(cap), inverse = splat(1 / cap);
  for_vectors(n, [&](size_t i, auto lanes) KEEL_LANES {
    store(hn::Mul(limit, tanh(hn::Mul(load(logits + i, lanes), inverse))), logits + i, lanes);
  });
}

HWY_INLINE float maximum_of(const float* logits, size_t n) {
  Vec maximum = splat(-kInfinity);
  for_vectors(n, [&](size_t i, auto lanes) KEEL_LANES {
    maximum = hn::Max(maximum, replace_tail(load(logits + i, lanes), -kInfinity, lanes));
  });
  return max_of(maximum);
}

HWY_INLINE float sum_exp(const float* logits, size_t n, float maximum) {
  const Vec shift = splat(maximum);
  return sum_over(n, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    return hn::Add(sum, exp(hn::Sub(replace_tail(load(logits + i, lanes), -kInfinity, lanes), shift)));
  });
}

struct RowStatistics {
  float maximum = -kInfinity;
  double sum_exp = 0;  // of exp(logit - maximum)
  double logit_sum = 0;
};

// One pass over memory: each block is capped, then its sums are added at the maximum so far.
RowStatistics row_statistics(float* logits, size_t n, float cap) {
  RowStatistics row;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    float* block = logits + begin;
    const size_t size = std::min(kBlock, n - begin);
    if (cap > 0) cap_row(block, size, cap);
    const float before = row.maximum;
    row.maximum = std::max(before, maximum_of(block, size));
    // Nothing but -infinity so far: e^-infinity is 0 at any shift, -infinity itself would give NaN.
    const float shift = row.maximum == -kInfinity ? 0 : row.maximum;
    if (row.sum_exp > 0) row.sum_exp *= std::exp(double(before) - double(shift));
    row.sum_exp += double(sum_exp(block, size, shift));
    row.logit_sum += double(
        sum_over(size, [&](size_t i, auto lanes, Vec sum) KEEL_LANES { return hn::Add(sum, load(block + i, lanes)); }));
  }
  return row;
}

void statistics_rows(const CrossEntropyStatistics& statistics, const Tensor& logits, const ConstTensor& targets,
                     const CrossEntropyOptions& options) {
  const size_t real = real_columns(logits.size(1), options);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    float* own = logits.as<float>() + row * logits.stride(0);
    const RowStatistics result = row_statistics(own, real, options.softcap);
    const int64_t target = target_column(targets.as<int32_t>()[row], real, options);
    statistics.maximum.as<float>()[row] = result.maximum;
    statistics.sum_exp.as<float>()[row] = float(result.sum_exp);
    statistics.logit_sum.as<float>()[row] = float(result.logit_sum);
    statistics.target_logit.as<float>()[row] = target < 0 ? 0.f : own[target];
  }
}

// d = (by_softmax * exp(logit - maximum) - even) * (1 - (logit / cap)^2); the target's own share comes on top.
struct RowGradient {
  double maximum = 0;
  double by_softmax = 0;
  double even = 0;
  double target = 0;
  double inverse_cap = 0;  // 0 without a soft-cap

  double at_target(double logit) const {
    const double slope = logit * inverse_cap;
    return (by_softmax * std::exp(logit - maximum) - even - target) * (1 - slope * slope);
  }
};

template <class T>
HWY_INLINE void gradient_row(T* d_logits, const float* logits, size_t n, const RowGradient& row) {
  const Vec maximum = splat(float(row.maximum)), by_softmax = splat(float(row.by_softmax));
  const Vec even = splat(float(row.even)), inverse_cap = splat(float(row.inverse_cap));
  for_vectors(n, [&](size_t i, auto lanes) KEEL_LANES {
    const Vec logit = load(logits + i, lanes);
    const Vec slope = hn::Mul(logit, inverse_cap);
    const Vec inner = hn::MulSub(exp(hn::Sub(logit, maximum)), by_softmax, even);
    // Without a soft-cap a logit of -infinity must not meet 0 * infinity.
    const Vec square = hn::IfThenElseZero(hn::Ne(inverse_cap, zero()), hn::Mul(slope, slope));
    store(hn::NegMulAdd(square, inner, inner), d_logits + i, lanes);
  });
}

RowGradient row_gradient(const CrossEntropyGradient& call, int64_t row) {
  const CrossEntropyStatistics& statistics = call.statistics;
  const CrossEntropyOptions& options = call.options;
  const double smoothing = options.label_smoothing, scale = *call.factor.as<float>();
  const double maximum = statistics.maximum.as<float>()[row], sum = statistics.sum_exp.as<float>()[row];
  const double log_sum_exp = maximum + std::log(sum);
  return {maximum, scale * (1 + 2 * double(options.z_loss) * log_sum_exp) / sum,
          scale * smoothing / double(options.vocabulary), scale * (1 - smoothing),
          options.softcap > 0 ? 1 / double(options.softcap) : 0};
}

void gradient_rows(const Tensor& d_logits, const CrossEntropyGradient& call) {
  const auto& [logits, statistics, targets, factor, options] = call;
  const size_t real = real_columns(logits.size(1), options);
  dispatch_float(d_logits.dtype(), [&]<class T>() {
    for (int64_t row = 0; row < logits.size(0); ++row) {
      const float* own = logits.as<float>() + row * logits.stride(0);
      T* d_own = d_logits.as<T>() + row * d_logits.stride(0);
      const int32_t id = targets.as<int32_t>()[row];
      const size_t written = id < 0 ? 0 : real;
      std::fill(d_own + written, d_own + logits.size(1), T(0.f));
      if (id < 0) continue;
      const RowGradient gradient = row_gradient(call, row);
      const int64_t target = target_column(id, real, options);
      const double logit = target < 0 ? 0 : double(own[target]);  // read first: d_logits may be the logits
      gradient_row(d_own, own, real, gradient);
      if (target >= 0) d_own[target] = T(float(gradient.at_target(logit)));
    }
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops {
HWY_EXPORT(statistics_rows);
HWY_EXPORT(gradient_rows);

namespace cpu {
namespace {

// A thread is worth 16k elements.
int parts_for(const ConstTensor& logits) {
  return parts_of(logits.size(0), 16384 / std::max<int64_t>(logits.size(1), 1));
}

CrossEntropyStatistics rows_of(const CrossEntropyStatistics& s, int64_t begin, int64_t end) {
  return {s.maximum.slice(0, begin, end), s.sum_exp.slice(0, begin, end), s.target_logit.slice(0, begin, end),
          s.logit_sum.slice(0, begin, end)};
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& statistics, Tensor logits, ConstTensor targets,
                              const CrossEntropyOptions& options) {
  for_parts(logits.size(0), parts_for(logits), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(statistics_rows)
    (rows_of(statistics, begin, end), logits.slice(0, begin, end), targets.slice(0, begin, end), options);
  });
}

void cross_entropy_rescale(const CrossEntropyStatistics& statistics, ConstTensor global_maximum) {
  float* maximum = statistics.maximum.as<float>();
  float* sum_exp = statistics.sum_exp.as<float>();
  const float* global = global_maximum.as<float>();
  for (int64_t row = 0; row < global_maximum.elements(); ++row) {
    // Equal infinities differ by NaN.
    if (maximum[row] != global[row]) sum_exp[row] *= std::exp(maximum[row] - global[row]);
    maximum[row] = global[row];
  }
}

void cross_entropy_loss(Tensor sums, const CrossEntropyStatistics& statistics, ConstTensor targets,
                        const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  double own[4] = {};
  for (int64_t row = 0; row < targets.elements(); ++row) {
    if (targets.as<int32_t>()[row] < 0) continue;
    const double maximum = statistics.maximum.as<float>()[row], sum = statistics.sum_exp.as<float>()[row];
    const double log_sum_exp = maximum + std::log(sum);
    double loss = log_sum_exp - (1 - smoothing) * double(statistics.target_logit.as<float>()[row]);
    if (smoothing > 0) loss -= smoothing * double(statistics.logit_sum.as<float>()[row]) / double(options.vocabulary);
    own[0] += loss;
    own[1] += double(options.z_loss) * log_sum_exp * log_sum_exp;
    own[2] += 1;
    own[3] += std::isfinite(loss) ? 1 : 0;
  }
  for (int i = 0; i < 4; ++i) sums.as<double>()[i] += own[i];
}

void cross_entropy_gradient(Tensor d_logits, const CrossEntropyGradient& call) {
  for_parts(d_logits.size(0), parts_for(d_logits), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gradient_rows)
    (d_logits.slice(0, begin, end), {call.logits.slice(0, begin, end), rows_of(call.statistics, begin, end),
                                     call.targets.slice(0, begin, end), call.factor, call.options});
  });
}

}  // namespace cpu
}  // namespace keel::ops
#endif
