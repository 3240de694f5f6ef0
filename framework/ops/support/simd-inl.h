// Shared by the CPU kernels: fp32 vectors over fp32 or bf16 memory, with Highway. Included once per target, after
// hwy/foreach_target.h, by the file that holds the kernels; hence no include guard. The file that includes it opens
// its own HWY_BEFORE_NAMESPACE() and namespace keel::ops::HWY_NAMESPACE.
//
//   for_vectors(n, [&](size_t i, auto lanes) KEEL_LANES { store(hn::Neg(load(x + i, lanes)), y + i, lanes); });
//   float sum = sum_over(n, [&](size_t i, auto lanes, Vec sum) KEEL_LANES { return hn::Add(sum, load(x + i, lanes));
//   });
#include <cstring>

#include "framework/tensor/dtype.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

// Behind the parameters of a lambda that works on vectors: for the target at hand, and never a call per vector.
#undef KEEL_LANES
#define KEEL_LANES HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using Vec = hn::Vec<F32>;

// How many lanes of a vector a step covers: all, or the first `count` of a tail.
struct Whole {};
struct Part {
  size_t count;
};

// Calls f(i, lanes) for each vector of [0, n), the last one perhaps a Part.
template <class F>
HWY_INLINE void for_vectors(size_t n, const F& f) {
  const size_t step = hn::Lanes(F32());
  size_t i = 0;
  for (; i + step <= n; i += step) f(i, Whole{});
  if (i < n) f(i, Part{n - i});
}

HWY_INLINE Vec zero() {
  return hn::Zero(F32());
}
HWY_INLINE Vec splat(float value) {
  return hn::Set(F32(), value);
}
HWY_INLINE float sum_of(Vec v) {
  return hn::GetLane(hn::SumOfLanes(F32(), v));
}
HWY_INLINE float max_of(Vec v) {
  return hn::GetLane(hn::MaxOfLanes(F32(), v));
}

// The sum over the lanes of f(i, lanes, total), which returns total with its own term added. Four totals take turns, so
// that an addition need not wait for the one before it.
template <class F>
HWY_INLINE float sum_over(size_t n, const F& f) {
  const size_t step = hn::Lanes(F32());
  Vec a = zero(), b = zero(), c = zero(), d = zero();
  size_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    a = f(i, Whole{}, a);
    b = f(i + step, Whole{}, b);
    c = f(i + 2 * step, Whole{}, c);
    d = f(i + 3 * step, Whole{}, d);
  }
  for (; i + step <= n; i += step) a = f(i, Whole{}, a);
  if (i < n) b = f(i, Part{n - i}, b);
  return sum_of(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

// The 32 bits whose upper half is v as bf16, rounded to nearest even; NaN stays NaN.
HWY_INLINE hn::Vec<U32> bf16_bits(Vec v) {
  const U32 u;
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fffu)));
  return hn::Or(rounded, hn::BitCast(u, hn::VecFromMask(F32(), hn::IsNaN(v))));
}

// v as it would be read back after a store to T.
template <class T>
HWY_INLINE Vec rounded_to(Vec v) {
  if constexpr (sizeof(T) == 4) return v;
  return hn::BitCast(F32(), hn::And(bf16_bits(v), hn::Set(U32(), 0xffff0000u)));
}

// Lanes beyond a Part's count read as 0 and are not stored; memory there is never touched.
HWY_INLINE Vec load(const float* p, Whole) {
  return hn::LoadU(F32(), p);
}
HWY_INLINE Vec load(const bf16* p, Whole) {
  const auto half = hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), half)));
}
template <class T>
HWY_INLINE Vec load(const T* p, Part part) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(lanes, p, part.count * sizeof(T));
  return load(lanes, Whole{});
}

HWY_INLINE void store(Vec v, float* p, Whole) {
  hn::StoreU(v, F32(), p);
}
HWY_INLINE void store(Vec v, bf16* p, Whole) {
  const auto half = hn::DemoteTo(U16(), hn::BitCast(I32(), hn::ShiftRight<16>(bf16_bits(v))));
  hn::StoreU(half, U16(), reinterpret_cast<uint16_t*>(p));
}
template <class T>
HWY_INLINE void store(Vec v, T* p, Part part) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)];
  store(v, lanes, Whole{});
  std::memcpy(p, lanes, part.count * sizeof(T));
}

// v with the lanes beyond a Part's count replaced: for maxima, and for sums of values that are not 0 at 0.
HWY_INLINE Vec replace_tail(Vec v, float, Whole) {
  return v;
}
HWY_INLINE Vec replace_tail(Vec v, float value, Part part) {
  return hn::IfThenElse(hn::FirstN(F32(), part.count), v, splat(value));
}

// e^v to about 1 unit in the last place; 0 below -87.33 (the smallest normal number), infinite above 88.72. NaN gives
// NaN. v = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q through (e^r - 1 - r) / r^2 at Chebyshev nodes.
HWY_INLINE Vec exp(Vec v) {
  const Vec magic = splat(0x1.8p23f);  // adding it rounds to integers, which then lie in the lowest bits
  const Vec shifted = hn::MulAdd(v, splat(1.44269504f), magic);
  const Vec n = hn::Sub(shifted, magic);
  // ln 2 in two parts; n times the first is exact.
  const Vec r = hn::NegMulAdd(n, splat(-2.12194440e-4f), hn::NegMulAdd(n, splat(0.693359375f), v));
  Vec q = hn::MulAdd(splat(0.0013926250f), r, splat(0.0083632329f));
  q = hn::MulAdd(q, r, splat(0.0416665524f));
  q = hn::MulAdd(q, r, splat(0.1666657627f));
  q = hn::MulAdd(q, r, splat(0.5f));
  const Vec power = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), splat(1.f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted));
  const Vec scaled = hn::BitCast(F32(), hn::Add(hn::BitCast(I32(), power), exponent));
  const Vec result = hn::IfThenElse(hn::Le(v, splat(88.72f)), scaled, hn::Add(v, hn::Inf(F32())));
  return hn::IfThenZeroElse(hn::Lt(v, splat(-87.33f)), result);
}
HWY_INLINE Vec tanh(Vec v) {
  const Vec bounded = hn::Max(splat(-20.f), hn::Min(v, splat(20.f)));
  return hn::IfThenElse(hn::IsNaN(v), v, hn::Tanh(F32(), bounded));
}
// 1 / (1 + e^-v), with small relative error at both ends.
HWY_INLINE Vec sigmoid(Vec v) {
  return hn::Div(splat(1.f), hn::Add(splat(1.f), exp(hn::Neg(v))));
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
