#include "framework/ops/bias_cuda.h"
#include "framework/ops/support/kernel.h"

namespace keel::ops::cuda {
namespace {

enum class Added { bias, remainder };

// y [rows, width], `stride` elements between rows.
template <class T, int N, Added kAdded>
__global__ void __launch_bounds__(kThreads)
    add_to_rows(T* y, int64_t stride, const float* bias, int64_t rows, int64_t width) {
  const int64_t packs = width / N;
  for_elements<1>(rows * packs, [&](int64_t pack, auto) {
    const int64_t column = pack % packs * N;
    T* at = y + pack / packs * stride + column;
    float values[N], added[N];
    load(values, at);
    load(added, bias + column);
#pragma unroll
    for (int j = 0; j < N; ++j)
      values[j] += kAdded == Added::bias ? added[j] : added[j] - to_float(from_float<T>(added[j]));
    store(at, values);
  });
}

template <Added kAdded>
void add_rows(const Tensor& y, int64_t stride, const ConstTensor& bias) {
  const int64_t width = bias.elements(), rows = y.elements() / width;
  dispatch_device_float(y.dtype(), [&]<class T>() {
    dispatch_width(width % kWide == 0 && stride % kWide == 0 ? width_of(y, bias) : 1, [&]<int N>() {
      launch(add_to_rows<T, N, kAdded>, blocks_for(y.device(), y.elements() / N), kThreads, 0,
             keel::cuda::current_stream(y.device()), at<T>(y), stride, at<float>(bias), rows, width);
    });
  });
}

}  // namespace

void add_bias(Tensor y, ConstTensor bias) {
  add_rows<Added::bias>(y, y.dims() == 2 ? y.stride(0) : bias.elements(), bias);
}

void add_bias_remainder(Tensor y, ConstTensor bias) {
  add_rows<Added::remainder>(y, y.stride(0), bias);
}

}  // namespace keel::ops::cuda
