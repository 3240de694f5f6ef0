#include "framework/ops/bias_cpu.h"

#include "framework/tensor/dispatch.h"

namespace keel::ops::cpu {

void add_bias(Tensor y, ConstTensor bias) {
  const int64_t width = bias.elements(), rows = y.elements() / width;
  dispatch_float(y.dtype(), [&]<class T>() {
    T* values = y.as<T>();
    const float* b = bias.as<float>();
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) values[row * width + i] = T(float(values[row * width + i]) + b[i]);
  });
}

}  // namespace keel::ops::cpu
