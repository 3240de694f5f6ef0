#include "framework/ops/activation_cpu.h"

#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/activation_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/support/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

// silu(x) = x * sigmoid(x). gelu's tanh form is one too: 0.5 (1 + tanh(u)) = sigmoid(2u), so that
// gelu(x) = x * sigmoid(v) with v = 2 sqrt(2/pi) (x + 0.044715 x^3). Neither needs a tanh, and the relative error stays
// small far out on the left.
constexpr float kGeluSlope = 1.5957691216057308f;
constexpr float kGeluCube = 0.044715f;

struct Silu {
  static HWY_INLINE Vec value(Vec x) { return hn::Mul(x, sigmoid(x)); }
  // s + x s (1 - s); s * (1 - s) vanishes with s, so that x may be infinite only where the value is too.
  static HWY_INLINE void both(Vec x, Vec& value, Vec& slope) {
    const Vec s = sigmoid(x);
    value = hn::Mul(x, s);
    slope = hn::MulAdd(value, hn::Sub(splat(1.f), s), s);
  }
};

struct Gelu {
  static HWY_INLINE Vec argument(Vec x) {
    const Vec cube = hn::Mul(hn::Mul(x, x), splat(kGeluCube * kGeluSlope));
    return hn::Mul(x, hn::Add(cube, splat(kGeluSlope)));
  }
  static HWY_INLINE Vec value(Vec x) { return hn::Mul(x, sigmoid(argument(x))); }
  static HWY_INLINE void both(Vec x, Vec& value, Vec& slope) {
    const Vec s = sigmoid(argument(x));
    const Vec dv = hn::MulAdd(hn::Mul(x, x), splat(3 * kGeluCube * kGeluSlope), splat(kGeluSlope));
    value = hn::Mul(x, s);
    // Where s or 1 - s has vanished, so has the product, whatever dv: select, since 0 * infinity is NaN.
    const Vec bell = hn::Mul(hn::Mul(value, hn::Sub(splat(1.f), s)), dv);
    slope = hn::Add(s, hn::IfThenElse(hn::Gt(hn::Abs(x), splat(30.f)), zero(), bell));
  }
};

template <class T, class Function>
void gated_forward(T* y, const T* gate, int64_t features) {
  const T* up = gate + features;
  for_vectors(size_t(features), [&](size_t i, auto lanes) KEEL_LANES {
    store(hn::Mul(Function::value(load(gate + i, lanes)), load(up + i, lanes)), y + i, lanes);
  });
}

template <class T, class Function>
void plain_forward(T* y, const T* x, int64_t features) {
  for_vectors(size_t(features),
              [&](size_t i, auto lanes) KEEL_LANES { store(Function::value(load(x + i, lanes)), y + i, lanes); });
}

template <class T, class Function>
void gated_backward(T* d_gate, T* y, const T* dy, const T* gate, int64_t features) {
  const T* up = gate + features;
  T* d_up = d_gate + features;
  for_vectors(size_t(features), [&](size_t i, auto lanes) KEEL_LANES {
    Vec value, slope;
    Function::both(load(gate + i, lanes), value, slope);
    const Vec d = load(dy + i, lanes);
    const Vec u = load(up + i, lanes);
    store(hn::Mul(value, u), y + i, lanes);
    store(hn::Mul(hn::Mul(d, u), slope), d_gate + i, lanes);
    store(hn::Mul(d, value), d_up + i, lanes);
  });
}

template <class T, class Function>
void plain_backward(T* dx, T* y, const T* dy, const T* x, int64_t features) {
  for_vectors(size_t(features), [&](size_t i, auto lanes) KEEL_LANES {
    Vec value, slope;
    Function::both(load(x + i, lanes), value, slope);
    const Vec d = load(dy + i, lanes);
    store(value, y + i, lanes);
    store(hn::Mul(d, slope), dx + i, lanes);
  });
}

void forward_rows(Tensor y, ConstTensor x, ActivationKind kind) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const int64_t features = y.size(1);
    for (int64_t row = 0; row < y.size(0); ++row) {
      T* out = y.as<T>() + row * y.stride(0);
      const T* in = x.as<T>() + row * x.stride(0);
      if (kind == ActivationKind::swiglu) gated_forward<T, Silu>(out, in, features);
      if (kind == ActivationKind::geglu) gated_forward<T, Gelu>(out, in, features);
      if (kind == ActivationKind::gelu) plain_forward<T, Gelu>(out, in, features);
    }
  });
}

void backward_rows(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const int64_t features = dy.size(1);
    for (int64_t row = 0; row < dy.size(0); ++row) {
      T* out = dx.as<T>() + row * dx.stride(0);
      T* again = y.as<T>() + row * y.stride(0);
      const T* in = x.as<T>() + row * x.stride(0);
      const T* d = dy.as<T>() + row * dy.stride(0);
      if (kind == ActivationKind::swiglu) gated_backward<T, Silu>(out, again, d, in, features);
      if (kind == ActivationKind::geglu) gated_backward<T, Gelu>(out, again, d, in, features);
      if (kind == ActivationKind::gelu) plain_backward<T, Gelu>(out, again, d, in, features);
    }
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops::cpu {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

// Rows worth a thread: about 16k elements.
static int parts_for(ConstTensor x) {
  return parts_of(x.size(0), 16384 / std::max<int64_t>(x.size(1), 1));
}

void activation_forward(Tensor y, ConstTensor x, ActivationKind kind) {
  for_parts(x.size(0), parts_for(x), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(forward_rows)(y.slice(0, begin, end), x.slice(0, begin, end), kind);
  });
}

void activation_backward(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind) {
  for_parts(x.size(0), parts_for(x), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_rows)
    (dx.slice(0, begin, end), y.slice(0, begin, end), dy.slice(0, begin, end), x.slice(0, begin, end), kind);
  });
}

}  // namespace keel::ops::cpu
#endif
