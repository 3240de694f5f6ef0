#include "framework/ops/elementwise_cuda.h"
#include "framework/ops/support/kernel.h"
#include "framework/ops/support/partial_sums_cuda.h"

// Streaming kernels: every element is read and written once, 16 bytes at a time where addresses allow.
namespace keel::ops::cuda {
namespace {

template <class Y, class X, int N>
__global__ void __launch_bounds__(kThreads) convert_flat(Y* y, const X* x, int64_t n) {
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, x + i);
    store(y + i, values);
  });
}

struct Strides {
  int64_t y, x;
};

template <class Y, class X, int N>
__global__ void __launch_bounds__(kThreads)
    convert_rows(Y* y, const X* x, Strides strides, int64_t rows, int64_t columns) {
  for_elements<1>(rows * (columns / N), [&](int64_t i, auto) {
    const int64_t row = i / (columns / N), column = i % (columns / N) * N;
    float values[N];
    load(values, x + row * strides.x + column);
    store(y + row * strides.y + column, values);
  });
}

template <class Y, class A, class B, int N>
__global__ void __launch_bounds__(kThreads) add_flat(Y* y, const A* a, const B* b, int64_t n) {
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float left[W], right[W];
    load(left, a + i);
    load(right, b + i);
#pragma unroll
    for (int j = 0; j < W; ++j) left[j] += right[j];
    store(y + i, left);
  });
}

template <class Y, int N>
__global__ void __launch_bounds__(kThreads) fill_flat(Y* y, float value, int64_t n) {
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] = value;
    store(y + i, values);
  });
}

template <class Y, int N>
__global__ void __launch_bounds__(kThreads) scale_flat(Y* y, float factor, int64_t n) {
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, y + i);
#pragma unroll
    for (int j = 0; j < W; ++j) values[j] *= factor;
    store(y + i, values);
  });
}

// partial [blocks] = each block's share of sum x^2, added in double.
template <class X, int N>
__global__ void __launch_bounds__(kThreads) sum_squares(double* partial, const X* x, int64_t n) {
  double own = 0;
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) own += double(values[j]) * double(values[j]);
  });
  own = block_sum(own, device::shared_memory<double>());
  if (device::thread_index().x == 0) partial[device::block_index().x] = own;
}

// partial [2, blocks] = each block's counts.
template <class X, int N>
__global__ void __launch_bounds__(kThreads) count_out_of_range(double* partial, const X* x, int64_t n) {
  double saturated = 0, flushed = 0;
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      saturated += fabsf(values[j]) >= kLargestBf16;
      flushed += fabsf(values[j]) < kLeastNormalBf16;
    }
  });
  saturated = block_sum(saturated, device::shared_memory<double>());
  flushed = block_sum(flushed, device::shared_memory<double>());
  if (device::thread_index().x != 0) return;
  partial[device::block_index().x] = saturated;
  partial[device::grid_size().x + device::block_index().x] = flushed;
}

// f<N>(blocks, stream) for a flat pass over y and the others.
template <class F, class... Tensors>
void for_flat(const F& f, const Tensor& y, const Tensors&... others) {
  const int width = width_of(y, others...);
  dispatch_width(width, [&]<int N>() {
    f.template operator()<N>(blocks_for(y.device(), (y.elements() + width - 1) / width),
                             keel::cuda::current_stream(y.device()));
  });
}

}  // namespace

void convert(Tensor y, ConstTensor x) {
  dispatch_device_float(y.dtype(), [&]<class Y>() {
    dispatch_device_float(x.dtype(), [&]<class X>() {
      if (x.contiguous() && y.contiguous())
        return for_flat(
            [&]<int N>(unsigned blocks, cudaStream_t stream) {
              launch(convert_flat<Y, X, N>, blocks, kThreads, 0, stream, at<Y>(y), at<X>(x), y.elements());
            },
            y, x);
      const Strides strides{y.stride(0), x.stride(0)};
      dispatch_width(row_width_of(y, x), [&]<int N>() {
        launch(convert_rows<Y, X, N>, blocks_for(y.device(), y.elements() / N), kThreads, 0,
               keel::cuda::current_stream(y.device()), at<Y>(y), at<X>(x), strides, y.size(0), y.size(1));
      });
    });
  });
}

void add(Tensor y, ConstTensor a, ConstTensor b) {
  dispatch_device_float(y.dtype(), [&]<class Y>() {
    dispatch_device_float(a.dtype(), [&]<class A>() {
      dispatch_device_float(b.dtype(), [&]<class B>() {
        for_flat(
            [&]<int N>(unsigned blocks, cudaStream_t stream) {
              launch(add_flat<Y, A, B, N>, blocks, kThreads, 0, stream, at<Y>(y), at<A>(a), at<B>(b), y.elements());
            },
            y, a, b);
      });
    });
  });
}

void fill(Tensor y, float value) {
  dispatch_device_float(y.dtype(), [&]<class Y>() {
    for_flat(
        [&]<int N>(unsigned blocks, cudaStream_t stream) {
          launch(fill_flat<Y, N>, blocks, kThreads, 0, stream, at<Y>(y), value, y.elements());
        },
        y);
  });
}

void scale(Tensor y, float factor) {
  dispatch_device_float(y.dtype(), [&]<class Y>() {
    for_flat(
        [&]<int N>(unsigned blocks, cudaStream_t stream) {
          launch(scale_flat<Y, N>, blocks, kThreads, 0, stream, at<Y>(y), factor, y.elements());
        },
        y);
  });
}

void add_sum_of_squares(Tensor total, ConstTensor x) {
  const int64_t n = x.elements();
  if (n == 0) return;
  const int width = width_of(x);
  const unsigned blocks = blocks_for(x.device(), (n + width - 1) / width);
  double* partial = partial_sums(x.device(), blocks);
  dispatch_device_float(x.dtype(), [&]<class X>() {
    dispatch_width(width, [&]<int N>() {
      launch(sum_squares<X, N>, blocks, kThreads, kThreads / device::kWarp * sizeof(double),
             keel::cuda::current_stream(x.device()), partial, at<X>(x), n);
    });
  });
  add_partial_sums(total, partial, blocks);
}

void add_out_of_range(Tensor counts, ConstTensor x) {
  const int64_t n = x.elements();
  if (n == 0) return;
  const int width = width_of(x);
  const unsigned blocks = blocks_for(x.device(), (n + width - 1) / width);
  double* partial = partial_sums(x.device(), 2 * int64_t(blocks));
  dispatch_device_float(x.dtype(), [&]<class X>() {
    dispatch_width(width, [&]<int N>() {
      launch(count_out_of_range<X, N>, blocks, kThreads, kThreads / device::kWarp * sizeof(double),
             keel::cuda::current_stream(x.device()), partial, at<X>(x), n);
    });
  });
  for (int64_t i = 0; i < 2; ++i) add_partial_sums(counts.slice(0, i, i + 1), partial + i * blocks, blocks);
}

}  // namespace keel::ops::cuda
