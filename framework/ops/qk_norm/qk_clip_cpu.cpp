#include "framework/ops/qk_norm/qk_clip_cpu.h"

#include <algorithm>

namespace keel::ops::cpu {

void qk_clip_factors(Tensor factors, ConstTensor largest, ConstTensor gate, double tau) {
  const bool made = gate.as<float>()[1] != 0;
  for (int64_t i = 0; i < factors.elements(); ++i) {
    const float logit = largest.as<float>()[i];
    factors.as<float>()[i] = made && logit > float(tau) ? float(tau) / logit : 1.f;
  }
}

void smallest_of_rows(Tensor smallest, ConstTensor x) {
  const int64_t columns = x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row)
    smallest.as<float>()[row] = *std::min_element(x.as<float>() + row * columns, x.as<float>() + (row + 1) * columns);
}

void scale_rows(Tensor weights, ConstTensor factors, float shift) {
  const int64_t columns = weights.size(1);
  for (int64_t row = 0; row < weights.size(0); ++row) {
    const float c = factors.as<float>()[factors.elements() == 1 ? 0 : row];
    if (c == 1) continue;  // 1 + w - 1 would round
    float* w = weights.as<float>() + row * columns;
    for (int64_t i = 0; i < columns; ++i) w[i] = c * (w[i] + shift) - shift;
  }
}

void clamp(Tensor weights, float low, float high) {
  float* w = weights.as<float>();
  for (int64_t i = 0; i < weights.elements(); ++i) w[i] = std::clamp(w[i], low, high);
}

}  // namespace keel::ops::cpu
