// QK-Norm and rotation in double, one side (q or k), every step on its own: the definition that the shipped twins are
// compared with. Finite differences check its gradients.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "framework/ops/qk_norm/qk_norm_rope.h"

namespace keel::reference {

using Values = std::vector<double>;

struct QkSide {
  int64_t tokens = 1, heads = 1, d = 1, rotated = 0;
  ops::QkNormKind kind = ops::QkNormKind::rms;
  ops::QkNormScope scope = ops::QkNormScope::head;
  double eps = 1e-6;
  bool zero_centered = false, after_rope = false;
  bool round_to_bf16 = false;  // cast_before_weight in a bf16 run
  Values weight;               // empty, [d] or [heads, d]
  Values table;                // [tokens, rotated]: cos then sin of each token's position

  int64_t group() const { return scope == ops::QkNormScope::full ? heads * d : d; }  // features of one statistic
  size_t weight_index(int64_t i) const { return size_t(int64_t(weight.size()) == d ? i % d : i % (heads * d)); }
  double gain(int64_t i) const { return weight.empty() ? 1 : weight[weight_index(i)] + (zero_centered ? 1 : 0); }
};

inline Values rotate(const QkSide& side, const Values& x, double direction) {
  Values y = x;
  int64_t half = side.rotated / 2;
  for (int64_t row = 0; row < side.tokens * side.heads; ++row) {
    const double* table = side.table.data() + row / side.heads * side.rotated;
    for (int64_t i = 0; i < half; ++i) {
      size_t a = size_t(row * side.d + i), b = a + size_t(half);
      double c = table[i], s = direction * table[half + i];
      y[a] = x[a] * c - x[b] * s;
      y[b] = x[b] * c + x[a] * s;
    }
  }
  return y;
}

struct GroupStatistic {
  double mean = 0, inverse = 1;
  bool floored = false;
};

inline GroupStatistic statistic_of(const QkSide& side, const double* x) {
  int64_t n = side.group();
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  double mean = side.kind == ops::QkNormKind::layer ? sum / double(n) : 0;
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  if (side.kind == ops::QkNormKind::none) return {};
  if (side.kind == ops::QkNormKind::l2)
    return {0, 1 / std::max(std::sqrt(squares), side.eps), std::sqrt(squares) < side.eps};
  double under_root = squares / double(n) + side.eps;
  return {mean, under_root > 0 ? 1 / std::sqrt(under_root) : 0, false};
}

inline double rounded(const QkSide& side, double value) {
  return side.round_to_bf16 ? double(float(bf16(float(value)))) : value;
}

// The normalised rows, before the gain.
inline Values normalize(const QkSide& side, const Values& x) {
  Values y(x.size());
  int64_t n = side.group();
  for (int64_t start = 0; start < int64_t(x.size()); start += n) {
    GroupStatistic statistic = statistic_of(side, &x[size_t(start)]);
    for (int64_t i = start; i < start + n; ++i)
      y[size_t(i)] = rounded(side, (x[size_t(i)] - statistic.mean) * statistic.inverse);
  }
  return y;
}

inline Values qk_norm_forward(const QkSide& side, const Values& x) {
  Values y = normalize(side, side.after_rope ? rotate(side, x, 1) : x);
  for (int64_t i = 0; i < int64_t(y.size()); ++i) y[size_t(i)] *= side.gain(i);
  return side.after_rope ? y : rotate(side, y, 1);
}

struct QkGradients {
  Values dx, d_weight;
};

// dx of one group from g = gain * dy.
inline void normalize_backward(const QkSide& side, double* dx, const double* g, const double* x) {
  int64_t n = side.group();
  GroupStatistic statistic = statistic_of(side, x);
  double r = statistic.inverse, sum_g = 0, sum_gx = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum_g += g[i];
    sum_gx += g[i] * (x[i] - statistic.mean);
  }
  for (int64_t i = 0; i < n; ++i) {
    double centred = x[i] - statistic.mean;
    if (side.kind == ops::QkNormKind::none) dx[i] = g[i];
    if (side.kind == ops::QkNormKind::l2) dx[i] = statistic.floored ? 0 : r * g[i] - r * r * r * centred * sum_gx;
    if (side.kind == ops::QkNormKind::rms) dx[i] = r * g[i] - r * r * r * centred * sum_gx / double(n);
    if (side.kind == ops::QkNormKind::layer)
      dx[i] = r * (g[i] - sum_g / double(n)) - r * r * r * centred * sum_gx / double(n);
  }
}

inline QkGradients qk_norm_backward(const QkSide& side, const Values& dy_out, const Values& x_in) {
  Values x = side.after_rope ? rotate(side, x_in, 1) : x_in;
  Values dy = side.after_rope ? dy_out : rotate(side, dy_out, -1);
  Values xhat = normalize(side, x), g = dy;
  QkGradients gradients{Values(x.size()), Values(side.weight.size())};
  for (int64_t i = 0; i < int64_t(x.size()); ++i) {
    g[size_t(i)] *= side.gain(i);
    if (!side.weight.empty()) gradients.d_weight[side.weight_index(i)] += dy[size_t(i)] * xhat[size_t(i)];
  }
  for (int64_t start = 0; start < int64_t(x.size()); start += side.group())
    normalize_backward(side, &gradients.dx[size_t(start)], &g[size_t(start)], &x[size_t(start)]);
  if (side.after_rope) gradients.dx = rotate(side, gradients.dx, -1);
  return gradients;
}

}  // namespace keel::reference
