// Gated and plain activations in double, by their textbook definitions.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "framework/ops/activation.h"

namespace keel::reference {

using Values = std::vector<double>;

inline double activate(ops::ActivationKind kind, double x) {
  if (kind == ops::ActivationKind::swiglu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

inline double activation_slope(ops::ActivationKind kind, double x) {
  if (kind == ops::ActivationKind::swiglu) {
    double s = 1 / (1 + std::exp(-x));
    return s * (1 + x * (1 - s));
  }
  double factor = std::sqrt(2 / std::numbers::pi), t = std::tanh(factor * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * factor * (1 + 3 * 0.044715 * x * x);
}

// x [n, 2F] or [n, F]; y [n, F].
inline Values activation_forward(ops::ActivationKind kind, const Values& x, int64_t features) {
  bool gated = ops::is_gated(kind);
  size_t f = size_t(features), width = gated ? 2 * f : f;
  Values y(x.size() / width * f);
  for (size_t i = 0; i < y.size(); ++i) {
    size_t at = i / f * width + i % f;
    y[i] = activate(kind, x[at]) * (gated ? x[at + f] : 1);
  }
  return y;
}

inline Values activation_backward(ops::ActivationKind kind, const Values& dy, const Values& x, int64_t features) {
  bool gated = ops::is_gated(kind);
  size_t f = size_t(features), width = gated ? 2 * f : f;
  Values dx(x.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    size_t at = i / f * width + i % f;
    dx[at] = dy[i] * activation_slope(kind, x[at]) * (gated ? x[at + f] : 1);
    if (gated) dx[at + f] = dy[i] * activate(kind, x[at]);
  }
  return dx;
}

}  // namespace keel::reference
