#include "framework/ops/bias_cuda.h"
#include "framework/ops/kernel.h"

namespace keel::ops::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_to_rows(T* y, const float* bias, int64_t elements, int64_t width) {
  for_elements<1>(elements / N, [&](int64_t pack, auto) {
    const int64_t i = pack * N;
    float values[N], added[N];
    load(values, y + i);
    load(added, bias + i % width);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] += added[j];
    store(y + i, values);
  });
}

}  // namespace

void add_bias(Tensor y, ConstTensor bias) {
  const int64_t width = bias.elements();
  dispatch_device_float(y.dtype(), [&]<class T>() {
    dispatch_width(width % kWide == 0 ? width_of(y, bias) : 1, [&]<int N>() {
      launch(add_to_rows<T, N>, blocks_for(y.device(), y.elements() / N), kThreads, 0,
             keel::cuda::current_stream(y.device()), at<T>(y), at<float>(bias), y.elements(), width);
    });
  });
}

}  // namespace keel::ops::cuda
