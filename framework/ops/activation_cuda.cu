#include <cmath>

#include "framework/ops/activation_cuda.h"
#include "framework/ops/support/kernel.h"

// Streaming kernels: forward reads x and writes y once, backward reads dy and x and writes dx and y once.
namespace keel::ops::cuda {
namespace {

// As in the CPU twin: gelu's tanh form is x * sigmoid(v), v = 2 sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kGeluSlope = 1.5957691216057308f;
constexpr float kGeluCube = 0.044715f;

__device__ __forceinline__ float sigmoid(float x) {
  return 1.f / (1.f + expf(-x));
}

struct ValueAndSlope {
  float value, slope;
};

struct Silu {
  static __device__ __forceinline__ ValueAndSlope both(float x) {
    const float s = sigmoid(x), value = x * s;
    return {value, fmaf(value, 1.f - s, s)};
  }
};

struct Gelu {
  static __device__ __forceinline__ ValueAndSlope both(float x) {
    const float s = sigmoid(x * (x * x * (kGeluCube * kGeluSlope) + kGeluSlope)), value = x * s;
    const float dv = fmaf(x * x, 3 * kGeluCube * kGeluSlope, kGeluSlope);
    // Where s or 1 - s has vanished, so has the product, whatever dv: select, since 0 * infinity is NaN.
    return {value, fabsf(x) > 30.f ? s : s + value * (1.f - s) * dv};
  }
};

// Rows of `features` outputs, strides in elements.
struct Rows {
  int64_t rows, features;
  int64_t y_stride, x_stride, dx_stride, dy_stride;
};

// f(row, feature) for packs of N features.
template <int N, class F>
__device__ __forceinline__ void for_packs(const Rows& rows, const F& f) {
  const int64_t packs = rows.features / N;
  for_elements<1>(rows.rows * packs, [&](int64_t i, auto) { f(i / packs, i % packs * N); });
}

template <class T, class Function, bool kGated, int N>
__global__ void __launch_bounds__(kThreads) forward(T* y, const T* x, Rows rows) {
  for_packs<N>(rows, [&](int64_t row, int64_t feature) {
    const T* gate = x + row * rows.x_stride + feature;
    float values[N], up[N];
    load(values, gate);
    if constexpr (kGated) load(up, gate + rows.features);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = Function::both(values[i]).value;
      if constexpr (kGated) values[i] *= up[i];
    }
    store(y + row * rows.y_stride + feature, values);
  });
}

// The output once more, and the gradient. y may be dy's memory and dx x's: every element is read before it is written.
template <class T, class Function, bool kGated, int N>
__global__ void __launch_bounds__(kThreads) backward(T* dx, T* y, const T* dy, const T* x, Rows rows) {
  for_packs<N>(rows, [&](int64_t row, int64_t feature) {
    const T* gate = x + row * rows.x_stride + feature;
    T* d_gate = dx + row * rows.dx_stride + feature;
    float values[N], up[N], d[N], again[N];
    load(values, gate);
    if constexpr (kGated) load(up, gate + rows.features);
    load(d, dy + row * rows.dy_stride + feature);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const ValueAndSlope at_x = Function::both(values[i]);
      again[i] = kGated ? at_x.value * up[i] : at_x.value;
      values[i] = kGated ? d[i] * up[i] * at_x.slope : d[i] * at_x.slope;
      if constexpr (kGated) up[i] = d[i] * at_x.value;
    }
    store(y + row * rows.y_stride + feature, again);
    store(d_gate, values);
    if constexpr (kGated) store(d_gate + rows.features, up);
  });
}

// f.operator()<T, Function, kGated, N>().
template <class F>
void dispatch(DType dtype, ActivationKind kind, int width, const F& f) {
  dispatch_device_float(dtype, [&]<class T>() {
    dispatch_width(width, [&]<int N>() {
      if (kind == ActivationKind::swiglu) f.template operator()<T, Silu, true, N>();
      if (kind == ActivationKind::geglu) f.template operator()<T, Gelu, true, N>();
      if (kind == ActivationKind::gelu) f.template operator()<T, Gelu, false, N>();
    });
  });
}

// The gate's and the up's halves begin at multiples of 16 bytes too.
template <class... Tensors>
int activation_width(const ConstTensor& narrow, const Tensors&... wide) {
  return narrow.size(1) % kWide == 0 ? row_width_of(narrow, wide...) : 1;
}

}  // namespace

void activation_forward(Tensor y, ConstTensor x, ActivationKind kind) {
  const Rows rows{y.size(0), y.size(1), y.stride(0), x.stride(0), 0, 0};
  dispatch(y.dtype(), kind, activation_width(y, x), [&]<class T, class Function, bool kGated, int N>() {
    launch(forward<T, Function, kGated, N>, blocks_for(y.device(), y.elements() / N), kThreads, 0,
           keel::cuda::current_stream(y.device()), at<T>(y), at<T>(x), rows);
  });
}

void activation_backward(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind) {
  const Rows rows{dy.size(0), dy.size(1), y.stride(0), x.stride(0), dx.stride(0), dy.stride(0)};
  dispatch(dy.dtype(), kind, activation_width(dy, y, x, dx), [&]<class T, class Function, bool kGated, int N>() {
    launch(backward<T, Function, kGated, N>, blocks_for(dy.device(), dy.elements() / N), kThreads, 0,
           keel::cuda::current_stream(dy.device()), at<T>(dx), at<T>(y), at<T>(dy), at<T>(x), rows);
  });
}

}  // namespace keel::ops::cuda
