#include "framework/ops/update/adamw_cpu.h"

#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/update/adamw_cpu.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Once per target, hence after it.
#include "framework/ops/support/simd-inl.h"
// On top of simd-inl.h.
#include "framework/ops/support/double_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

// Every element sees the same operations, in a vector or in a tail, so that a slice has the whole's bits.
// Returns the sum of squares of the change of the weights.
template <class Store>
double update(const AdamwState& state, const float* gradient, const cpu::AdamwFactors& factors,
              const Store& store_compute) {
  float *master = state.master.as<float>(), *moment1 = state.moment1.as<float>(), *moment2 = state.moment2.as<float>();
  // lr m / c1 / (sqrt(v / c2) + eps) = m * rate / (sqrt(v * inverse2) + eps)
  const Vec rate = splat(factors.rate), inverse2 = splat(factors.inverse2), decay = splat(factors.decay);
  const Vec beta1 = splat(factors.beta1), rest1 = splat(factors.rest1);
  const Vec beta2 = splat(factors.beta2), rest2 = splat(factors.rest2);
  const Vec gradient_scale = splat(factors.gradient_scale), eps = splat(factors.eps);
  DoubleVec low = hn::Zero(F64()), high = low;
  for_vectors(size_t(state.master.elements()), [&](size_t i, auto lanes) HWY_ATTR {
    const Vec g = hn::Mul(load(gradient + i, lanes), gradient_scale);
    const Vec w = load(master + i, lanes);
    const Vec m = hn::MulAdd(beta1, load(moment1 + i, lanes), hn::Mul(rest1, g));
    const Vec v = hn::MulAdd(beta2, load(moment2 + i, lanes), hn::Mul(rest2, hn::Mul(g, g)));
    const Vec denominator = hn::Add(hn::Sqrt(hn::Mul(v, inverse2)), eps);
    const Vec change = hn::MulAdd(decay, w, hn::Div(hn::Mul(m, rate), denominator));
    const Vec updated = hn::Sub(w, change);
    store(m, moment1 + i, lanes);
    store(v, moment2 + i, lanes);
    store(updated, master + i, lanes);
    store_compute(updated, i, lanes);
    add_squares(replace_tail(hn::Sub(updated, w), 0.0f, lanes), low, high);
  });
  return sum_of(low, high);
}

double update_range(const AdamwState& state, ConstTensor gradient, const cpu::AdamwFactors& factors) {
  if (!state.compute.defined()) return update(state, gradient.as<float>(), factors, [](Vec, size_t, auto) HWY_ATTR {});
  bf16* compute = state.compute.as<bf16>();
  return update(state, gradient.as<float>(), factors,
                [=](Vec value, size_t i, auto lanes) HWY_ATTR { store(value, compute + i, lanes); });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops::cpu {

HWY_EXPORT(update_range);

namespace {

AdamwFactors factors_of(const AdamwControls& controls, const AdamwOptions& options) {
  const float *rates = controls.rates.as<float>(), *gate = controls.gate.as<float>();
  return {.made = gate[1] != 0,
          .rate = rates[0],
          .inverse2 = rates[1],
          .decay = controls.decayed ? rates[2] : 0,
          .beta1 = float(options.beta1),
          .rest1 = float(1 - options.beta1),
          .beta2 = float(options.beta2),
          .rest2 = float(1 - options.beta2),
          .gradient_scale = gate[0],
          .eps = float(options.eps)};
}

}  // namespace

void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options) {
  const AdamwFactors factors = factors_of(controls, options);
  if (!factors.made) return;
  constexpr int kChunks = 64;  // fixed: the sum does not depend on the thread count
  const int64_t n = gradient.elements();
  double squares[kChunks] = {};
  for_parts(kChunks, parts_of(n, 4096), [&](int, int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      auto part = [&](Tensor whole) { return whole.slice(0, n * chunk / kChunks, n * (chunk + 1) / kChunks); };
      const AdamwState of_part{part(state.master), part(state.moment1), part(state.moment2),
                               state.compute.defined() ? part(state.compute) : Tensor()};
      const ConstTensor slice = gradient.slice(0, n * chunk / kChunks, n * (chunk + 1) / kChunks);
      squares[chunk] = HWY_DYNAMIC_DISPATCH(update_range)(of_part, slice, factors);
    }
  });
  double total = 0;
  for (double chunk : squares) total += chunk;
  *change.as<double>() += total;
}

}  // namespace keel::ops::cpu
#endif
