// RMS norm and layer norm of rows in double: the definition that the shipped twins are compared with.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace keel::reference {

using Values = std::vector<double>;

struct Norm {
  bool layer = false;
  double eps = 1e-6;
  bool zero_centered = false;
  Values weight, bias;  // [D]; bias may be empty

  double gain(size_t i) const { return weight[i] + (zero_centered ? 1 : 0); }
};

struct NormRow {
  double mean = 0, inverse = 1;
};

inline NormRow norm_row(const Norm& norm, const double* x, size_t d) {
  double mean = 0, squares = 0;
  for (size_t i = 0; norm.layer && i < d; ++i) mean += x[i] / double(d);
  for (size_t i = 0; i < d; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / double(d) + norm.eps)};
}

inline Values norm_forward(const Norm& norm, const Values& x) {
  size_t d = norm.weight.size();
  Values y(x.size());
  for (size_t start = 0; start < x.size(); start += d) {
    NormRow row = norm_row(norm, &x[start], d);
    for (size_t i = 0; i < d; ++i)
      y[start + i] = (x[start + i] - row.mean) * row.inverse * norm.gain(i) + (norm.bias.empty() ? 0 : norm.bias[i]);
  }
  return y;
}

struct NormGradients {
  Values dx, d_weight, d_bias;
};

inline NormGradients norm_backward(const Norm& norm, const Values& dy, const Values& x) {
  size_t d = norm.weight.size();
  NormGradients gradients{Values(x.size()), Values(d), Values(norm.bias.size())};
  for (size_t start = 0; start < x.size(); start += d) {
    NormRow row = norm_row(norm, &x[start], d);
    double r = row.inverse, sum_g = 0, sum_gx = 0;
    for (size_t i = 0; i < d; ++i) {
      double centred = x[start + i] - row.mean, g = norm.gain(i) * dy[start + i];
      sum_g += g;
      sum_gx += g * centred;
      gradients.d_weight[i] += dy[start + i] * centred * r;
      if (!norm.bias.empty()) gradients.d_bias[i] += dy[start + i];
    }
    for (size_t i = 0; i < d; ++i) {
      double centred = x[start + i] - row.mean, g = norm.gain(i) * dy[start + i];
      gradients.dx[start + i] = r * (norm.layer ? g - sum_g / double(d) : g) - r * r * r * centred * sum_gx / double(d);
    }
  }
  return gradients;
}

}  // namespace keel::reference
