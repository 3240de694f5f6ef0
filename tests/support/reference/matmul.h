// Products in double, composed plainly. Matrices are row-major.
#pragma once

#include "tests/support/compare.h"

namespace keel::reference {

using testing::Values;

struct Sizes {
  int64_t rows, columns, inner;  // c [rows, columns] = a [rows, inner] b [inner, columns]
};

inline Values transposed(const Values& a, int64_t rows, int64_t columns) {
  Values result(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) result[size_t(j * rows + i)] = a[size_t(i * columns + j)];
  return result;
}

inline Values matmul(const Values& a, const Values& b, Sizes sizes) {
  Values c(size_t(sizes.rows * sizes.columns), 0.0);
  for (int64_t i = 0; i < sizes.rows; ++i)
    for (int64_t k = 0; k < sizes.inner; ++k)
      for (int64_t j = 0; j < sizes.columns; ++j)
        c[size_t(i * sizes.columns + j)] += a[size_t(i * sizes.inner + k)] * b[size_t(k * sizes.columns + j)];
  return c;
}

// x [n, K], w [N, K], bias [N] or empty.
struct LinearSizes {
  int64_t n, outputs, inputs;
};

inline Values linear_forward(const Values& x, const Values& w, const Values& bias, LinearSizes sizes) {
  Values y = matmul(x, transposed(w, sizes.outputs, sizes.inputs), {sizes.n, sizes.outputs, sizes.inputs});
  if (bias.empty()) return y;
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  return y;
}

inline Values linear_backward_input(const Values& dy, const Values& w, LinearSizes sizes) {
  return matmul(dy, w, {sizes.n, sizes.inputs, sizes.outputs});
}

inline Values linear_backward_weight(const Values& dy, const Values& x, LinearSizes sizes) {
  return matmul(transposed(dy, sizes.n, sizes.outputs), x, {sizes.outputs, sizes.inputs, sizes.n});
}

inline Values linear_backward_bias(const Values& dy, LinearSizes sizes) {
  return matmul(Values(size_t(sizes.n), 1.0), dy, {1, sizes.outputs, sizes.n});
}

}  // namespace keel::reference
