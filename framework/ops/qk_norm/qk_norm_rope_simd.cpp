#include "framework/ops/qk_norm/qk_norm_rope_simd.h"

#include <algorithm>
#include <cmath>

#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/qk_norm/qk_norm_rope_simd.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/support/simd-inl.h"
// clang-format on

// A token's side (all heads of q, or of k) is a few KB: it comes from memory once, is then worked on in the first-level
// cache, and goes back once. Rows that the norm sees as they lie in memory are read there; rotated ones are kept in
// scratch as fp32. All heads' statistics come before the first result, so that square roots overlap.
HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

using cpu::Moments;
using cpu::Normalizer;
using cpu::QkPass;
using cpu::QkScratch;
using cpu::QkSide;
using cpu::TokenRange;

// One token's q (side 0) or k (side 1).
struct Place {
  int side = 0;
  int64_t token = 0;
};

// A token's rotation: cos then sin, `half` each. half = 0: none.
struct Rotation {
  const float* cosines = nullptr;
  size_t half = 0;
};

HWY_INLINE Rotation rotation_of(const QkPass& pass, int64_t token, bool wanted) {
  if (!wanted || pass.half == 0) return {};
  return {pass.rope + pass.positions[token] * 2 * pass.half, size_t(pass.half)};
}

// to[0, d) = the rotation of source(i, lanes), pairs (i, i + half). `back` is the transposed rotation: the gradient's.
template <bool back, class To, class Source>
HWY_INLINE void turn(To* to, size_t d, const Rotation& rotation, const Source& source) {
  const size_t half = rotation.half;
  const float* cosines = rotation.cosines;
  const float* sines = cosines + half;
  for_vectors(half, [&](size_t i, auto lanes) KEEL_LANES {
    const Vec a = source(i, lanes);
    const Vec b = source(half + i, lanes);
    const Vec c = load(cosines + i, lanes);
    const Vec s = load(sines + i, lanes);
    const Vec ac = hn::Mul(a, c), bc = hn::Mul(b, c);
    store(back ? hn::MulAdd(b, s, ac) : hn::NegMulAdd(b, s, ac), to + i, lanes);
    store(back ? hn::NegMulAdd(a, s, bc) : hn::MulAdd(a, s, bc), to + half + i, lanes);
  });
  for_vectors(d - 2 * half,
              [&](size_t i, auto lanes) KEEL_LANES { store(source(2 * half + i, lanes), to + 2 * half + i, lanes); });
}

// The rotated rows of a token's side, as fp32.
template <bool back, class T>
void turn_rows(float* to, const T* from, const QkPass& pass, const Place& at) {
  const Rotation rotation = rotation_of(pass, at.token, true);
  for (int64_t head = 0; head < pass.sides[at.side].heads; ++head, to += pass.d, from += pass.d)
    turn<back>(to, size_t(pass.d), rotation, [&](size_t i, auto lanes) KEEL_LANES { return load(from + i, lanes); });
}

// f(x): a token's rows as the norm sees them, where they lie or rotated in scratch.
template <class T, class F>
void with_x(const QkPass& pass, const Place& at, const QkScratch& scratch, const F& f) {
  const QkSide& side = pass.sides[at.side];
  const T* x = static_cast<const T*>(side.x) + at.token * side.x_stride;
  if (!pass.after_rope) return f(x);
  turn_rows<false>(scratch.x, x, pass, at);
  f(scratch.x);
}
// f(x, dy): with the gradient of the norm's output beside them.
template <class T, class F>
void with_x_and_dy(const QkPass& pass, const Place& at, const QkScratch& scratch, const F& f) {
  const QkSide& side = pass.sides[at.side];
  const T* x = static_cast<const T*>(side.x) + at.token * side.x_stride;
  const T* dy = static_cast<const T*>(side.dy) + at.token * side.heads * pass.d;
  if (pass.after_rope) {
    turn_rows<false>(scratch.x, x, pass, at);
    f(scratch.x, dy);
  } else {
    turn_rows<true>(scratch.dy, dy, pass, at);
    f(x, scratch.dy);
  }
}

template <class X>
HWY_INLINE float sum_squares(const X* x, size_t d) {
  return sum_over(d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec v = load(x + i, lanes);
    return hn::MulAdd(v, v, sum);
  });
}

template <class X>
HWY_INLINE Moments layer_moments(const X* x, size_t d) {
  const float sum =
      sum_over(d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES { return hn::Add(sum, load(x + i, lanes)); });
  const Vec mean = splat(sum / float(d));
  const float second = sum_over(d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec centred = replace_tail(hn::Sub(load(x + i, lanes), mean), 0, lanes);
    return hn::MulAdd(centred, centred, sum);
  });
  return {double(d), double(sum / float(d)), double(second)};
}

template <class X>
HWY_INLINE Moments moments_of(const X* x, size_t d, QkNormKind kind) {
  if (kind == QkNormKind::layer) return layer_moments(x, d);
  return {double(d), 0, double(sum_squares(x, d))};
}

HWY_INLINE Normalizer normalizer_of(const Moments& moments, const QkPass& pass, const QkSide& side) {
  const float second = float(moments.second);
  if (pass.kind == QkNormKind::l2) {
    const float length = std::sqrt(second);
    const bool below = length < pass.eps;
    const float divisor = below ? pass.eps : length;
    return {divisor > 0 ? 1 / divisor : 0, 0, 1 / side.replicas, below};
  }
  const float under_root = second / side.width + pass.eps;
  const float inverse = under_root > 0 ? 1 / std::sqrt(under_root) : 0;
  return {inverse, float(moments.mean), 1 / (side.width * side.replicas), false};
}

// Scope full: of the token's combined statistics.
Normalizer combined_normalizer(const QkPass& pass, const Place& at) {
  const float* statistics = pass.statistics + at.token * pass.columns;
  const int side = at.side;
  Moments moments{0, 0, statistics[side]};
  if (pass.kind == QkNormKind::layer) moments = {0, statistics[2 * side], statistics[2 * side + 1]};
  return normalizer_of(moments, pass, pass.sides[side]);
}

// One for each head, from its own row x [heads, d] or from the combined statistics.
template <class X>
void set_normalizers(Normalizer* normalizers, const QkPass& pass, const Place& at, const X* x) {
  const QkSide& own = pass.sides[at.side];
  if (pass.kind == QkNormKind::none) {
    std::fill_n(normalizers, own.heads, Normalizer{});
  } else if (pass.full) {
    std::fill_n(normalizers, own.heads, combined_normalizer(pass, at));
  } else {
    for (int64_t head = 0; head < own.heads; ++head)
      normalizers[head] = normalizer_of(moments_of(x + head * pass.d, size_t(pass.d), pass.kind), pass, own);
  }
}

HWY_INLINE Vec normalized(Vec x, const Normalizer& normalizer) {
  return hn::Mul(hn::Sub(x, splat(normalizer.mean)), splat(normalizer.inverse));
}

template <class T, bool cast, class X>
void forward_side(const QkPass& pass, const Place& at, const X* x, Normalizer* normalizers) {
  const QkSide& side = pass.sides[at.side];
  const Rotation rotation = rotation_of(pass, at.token, !pass.after_rope);
  set_normalizers(normalizers, pass, at, x);
  T* out = static_cast<T*>(side.out) + at.token * side.heads * pass.d;
  for (int64_t head = 0; head < side.heads; ++head, x += pass.d, out += pass.d) {
    const float* gain = side.gain + head * side.gain_stride;
    const Normalizer normalizer = normalizers[head];
    turn<false>(out, size_t(pass.d), rotation, [&](size_t i, auto lanes) KEEL_LANES {
      const Vec xhat = normalized(load(x + i, lanes), normalizer);
      return hn::Mul(cast ? rounded_to<T>(xhat) : xhat, load(gain + i, lanes));
    });
  }
}

// One row of backward: x and dy as the norm sees them. X and Y are fp32 in scratch, or the activations' type.
template <class X, class Y>
struct Row {
  const X* x;
  const Y* dy;
  const float* gain;
  size_t d;
  Normalizer normalizer;
};

// S1 = sum g, g = gain * dy.
template <class X, class Y>
HWY_INLINE float gradient_sum(const Row<X, Y>& row) {
  return sum_over(row.d, [&](size_t i, auto lanes, Vec sum)
                             HWY_ATTR { return hn::MulAdd(load(row.dy + i, lanes), load(row.gain + i, lanes), sum); });
}

// S2 = sum g * xhat.
template <class X, class Y>
HWY_INLINE float projection(const Row<X, Y>& row) {
  return sum_over(row.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec xhat = normalized(load(row.x + i, lanes), row.normalizer);
    return hn::MulAdd(hn::Mul(xhat, load(row.gain + i, lanes)), load(row.dy + i, lanes), sum);
  });
}

// As projection, and d_gain += dy * xhat, of xhat rounded to T where forward did so.
template <class T, bool cast, class X, class Y>
HWY_INLINE float projection_and_gain(float* d_gain, const Row<X, Y>& row) {
  return sum_over(row.d, [&](size_t i, auto lanes, Vec sum) KEEL_LANES {
    const Vec xhat = normalized(load(row.x + i, lanes), row.normalizer);
    const Vec dy = load(row.dy + i, lanes);
    const Vec before = load(d_gain + i, lanes);
    store(hn::MulAdd(cast ? rounded_to<T>(xhat) : xhat, dy, before), d_gain + i, lanes);
    return hn::MulAdd(hn::Mul(xhat, load(row.gain + i, lanes)), dy, sum);
  });
}

// dx = by_gradient * g + by_x * (x - mean) + constant, which is inverse * (g - (S1 + xhat * S2) * share).
struct InputGradient {
  float by_gradient = 0;
  float by_x = 0;
  float mean = 0;
  float constant = 0;
};

HWY_INLINE InputGradient input_gradient(const Normalizer& n, float s1, float s2) {
  if (n.constant) return {};
  const float second = n.inverse * n.share * s2;
  return {n.inverse, -second * n.inverse, n.mean, -n.inverse * n.share * s1};
}

// From the ranks' combined sums, scope full.
InputGradient combined_input_gradient(const QkPass& pass, const Place& at, const Normalizer& normalizer) {
  const float* sums = pass.sums + at.token * pass.columns;
  const int side = at.side;
  if (pass.kind == QkNormKind::layer) return input_gradient(normalizer, sums[2 * side], sums[2 * side + 1]);
  return input_gradient(normalizer, 0, sums[side] * normalizer.inverse);  // S = sum g * x, and xhat = x * inverse
}

template <class T, bool cast, class X, class Y>
void backward_side(const QkPass& pass, const Place& at, const X* x, const Y* dy, const QkScratch& scratch) {
  const QkSide& side = pass.sides[at.side];
  const Rotation rotation = rotation_of(pass, at.token, pass.after_rope);
  const bool layer = pass.kind == QkNormKind::layer;
  const bool own_sums = pass.kind != QkNormKind::none && !pass.full;
  set_normalizers(scratch.normalizers, pass, at, x);
  T* dx = static_cast<T*>(side.dx) + at.token * side.dx_stride;
  float* d_gain = scratch.d_gain[at.side];
  for (int64_t head = 0; head < side.heads; ++head, dx += pass.d) {
    const int64_t first_feature = head * pass.d;
    const Row<X, Y> row{x + first_feature, dy + first_feature, side.gain + head * side.gain_stride, size_t(pass.d),
                        scratch.normalizers[head]};
    float s2 = 0;
    if (d_gain) s2 = projection_and_gain<T, cast>(d_gain + head * side.gain_stride, row);
    if (!d_gain && own_sums) s2 = projection(row);
    const InputGradient f = pass.full ? combined_input_gradient(pass, at, row.normalizer)
                                      : input_gradient(row.normalizer, layer ? gradient_sum(row) : 0, s2);
    turn<true>(dx, row.d, rotation, [&](size_t i, auto lanes) KEEL_LANES {
      const Vec centred = hn::Sub(load(row.x + i, lanes), splat(f.mean));
      const Vec rest = hn::MulAdd(centred, splat(f.by_x), splat(f.constant));
      const Vec g = hn::Mul(load(row.dy + i, lanes), load(row.gain + i, lanes));
      return hn::MulAdd(g, splat(f.by_gradient), rest);
    });
  }
}

// f(place): q, then k, of each token.
template <class F>
HWY_INLINE void for_sides(TokenRange tokens, const F& f) {
  for (int64_t token = tokens.begin; token < tokens.end; ++token)
    for (int side = 0; side < 2; ++side) f(Place{side, token});
}

void forward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  dispatch_float(pass.dtype, [&]<class T>() {
    for_sides(tokens, [&](const Place& at) {
      with_x<T>(pass, at, scratch, [&](auto x) {
        if (pass.cast_before_weight) forward_side<T, true>(pass, at, x, scratch.normalizers);
        if (!pass.cast_before_weight) forward_side<T, false>(pass, at, x, scratch.normalizers);
      });
    });
  });
}

void backward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  dispatch_float(pass.dtype, [&]<class T>() {
    for_sides(tokens, [&](const Place& at) {
      with_x_and_dy<T>(pass, at, scratch, [&](auto x, auto dy) {
        if (pass.cast_before_weight) backward_side<T, true>(pass, at, x, dy, scratch);
        if (!pass.cast_before_weight) backward_side<T, false>(pass, at, x, dy, scratch);
      });
    });
  });
}

template <class X>
void side_statistics(float* out, const QkPass& pass, int side, const X* x) {
  Moments all;
  for (int64_t head = 0; head < pass.sides[side].heads; ++head)
    all = cpu::merge(all, moments_of(x + head * pass.d, size_t(pass.d), pass.kind));
  if (pass.kind != QkNormKind::layer) {
    out[side] = float(all.second / double(pass.sides[side].replicas));
  } else {
    out[2 * side] = float(all.mean);
    out[2 * side + 1] = float(all.second);
  }
}

void statistics_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  dispatch_float(pass.dtype, [&]<class T>() {
    for_sides(tokens, [&](const Place& at) {
      with_x<T>(pass, at, scratch, [&](auto x) { side_statistics(out + at.token * pass.columns, pass, at.side, x); });
    });
  });
}

// Sums in double over the heads. l2 and rms want S = sum g * x: xhat with nothing done to x.
template <class X, class Y>
void side_sums(float* out, const QkPass& pass, const Place& at, const X* x, const Y* dy) {
  const QkSide& side = pass.sides[at.side];
  const bool layer = pass.kind == QkNormKind::layer;
  const Normalizer normalizer = layer ? combined_normalizer(pass, at) : Normalizer{};
  double first = 0, second = 0;
  for (int64_t head = 0; head < side.heads; ++head) {
    const int64_t first_feature = head * pass.d;
    const Row<X, Y> row{x + first_feature, dy + first_feature, side.gain + head * side.gain_stride, size_t(pass.d),
                        normalizer};
    if (layer) first += double(gradient_sum(row));
    second += double(projection(row));
  }
  if (layer) out[2 * at.side] = float(first);
  out[layer ? 2 * at.side + 1 : at.side] = float(second);
}

void sums_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  dispatch_float(pass.dtype, [&]<class T>() {
    for_sides(tokens, [&](const Place& at) {
      with_x_and_dy<T>(pass, at, scratch,
                       [&](auto x, auto dy) { side_sums(out + at.token * pass.columns, pass, at, x, dy); });
    });
  });
}

void squares_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  dispatch_float(pass.dtype, [&]<class T>() {
    for_sides(tokens, [&](const Place& at) {
      const QkSide& own = pass.sides[at.side];
      const T* x = static_cast<const T*>(own.x) + at.token * own.x_stride;
      for (int64_t head = 0; head < own.heads; ++head)
        scratch.squares[at.side][head] += double(sum_squares(x + head * pass.d, size_t(pass.d)));
    });
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops {
HWY_EXPORT(forward_tokens);
HWY_EXPORT(backward_tokens);
HWY_EXPORT(statistics_tokens);
HWY_EXPORT(sums_tokens);
HWY_EXPORT(squares_tokens);

namespace cpu {

void qk_forward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(forward_tokens)(pass, tokens, scratch);
}
void qk_backward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(backward_tokens)(pass, tokens, scratch);
}
void qk_statistics_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(statistics_tokens)(out, pass, tokens, scratch);
}
void qk_sums_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(sums_tokens)(out, pass, tokens, scratch);
}
void qk_squares_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(squares_tokens)(pass, tokens, scratch);
}

}  // namespace cpu
}  // namespace keel::ops
#endif
