// What every numerical test shares: seeded random tensors, values as doubles, and the tolerances as GoogleTest
// assertions that print what they measured.
//
//   EXPECT_TRUE(near_by_norm(y, expected, kOneOpBf16));
//   EXPECT_TRUE(fails(near_by_norm(shifted(to_doubles(y)), expected, kOneOpBf16)));    // the tolerance can tell
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "framework/base/rng.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/dispatch.h"
#include "tests/support/device.h"

namespace keel::testing {

using Values = std::vector<double>;

// One op against its reference in double, by norm over a tensor.
constexpr double kFloat32 = 1e-5;
constexpr double kOneOpBf16 = 4e-3;
constexpr double one_op_tolerance(DType dtype) {
  return dtype == DType::bf16 ? kOneOpBf16 : kFloat32;
}

// Calls f(element's number in row-major order, element's offset from the tensor's address) for every element.
template <class F>
void for_each_element(const ConstTensor& tensor, F&& f) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    int64_t rest = i, offset = 0;
    for (int dim = tensor.dims() - 1; dim >= 0; --dim) {
      offset += rest % tensor.size(dim) * tensor.stride(dim);
      rest /= tensor.size(dim);
    }
    f(i, offset);
  }
}

// The elements of an fp32 or bf16 tensor in row-major order, strided views included.
inline Values to_doubles(const ConstTensor& tensor) {
  Values values(size_t(tensor.elements()));
  const OnHost host(tensor);
  dispatch_float(tensor.dtype(), [&]<class T>() {
    for_each_element(tensor, [&](int64_t i, int64_t offset) { values[size_t(i)] = float(host.as<T>()[offset]); });
  });
  return values;
}

// Writes values in row-major order, rounded to the tensor's type.
inline void set_values(const Tensor& tensor, const Values& values) {
  require(int64_t(values.size()) == tensor.elements(), "{} values for {}", values.size(), tensor.shape());
  const OnHost host(tensor);
  dispatch_float(tensor.dtype(), [&]<class T>() {
    for_each_element(tensor, [&](int64_t i, int64_t offset) { host.as<T>()[offset] = T(float(values[size_t(i)])); });
  });
  host.put_back();
}

// Independent normal values with this deviation and mean, a function of the seed.
inline Values random_values(int64_t count, uint64_t seed, double deviation = 1, double mean = 0) {
  Values values(size_t(count), 0.0);
  for (int64_t i = 0; i < count; ++i) values[size_t(i)] = mean + deviation * inverse_normal(uniform(seed, uint64_t(i)));
  return values;
}
inline void fill_random(const Tensor& tensor, uint64_t seed, double deviation = 1, double mean = 0) {
  set_values(tensor, random_values(tensor.elements(), seed, deviation, mean));
}
inline DeviceTensor random_tensor(const Shape& shape, DType dtype, uint64_t seed, double deviation = 1,
                                  double mean = 0) {
  DeviceTensor owned(shape, dtype);
  fill_random(owned, seed, deviation, mean);
  return owned;
}
inline DeviceTensor tensor_of(const Shape& shape, DType dtype, const Values& values) {
  DeviceTensor owned(shape, dtype);
  set_values(owned, values);
  return owned;
}
// Integers uniform in [low, high).
inline int64_t random_integer(uint64_t seed, uint64_t index, int64_t low, int64_t high) {
  return std::min(low + int64_t(uniform(seed, index) * double(high - low)), high - 1);
}

inline double norm_of(const double* values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}
inline double norm_of(const Values& values) {
  return norm_of(values.data(), values.size());
}
inline Values difference(const Values& a, const Values& b) {
  Values result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = a[i] - b[i];
  return result;
}

// |actual - expected| <= relative |expected| + absolute, by norm. NaN anywhere fails.
inline ::testing::AssertionResult near_by_norm(const Values& actual, const Values& expected, double relative,
                                               double absolute = 0) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " values against " << expected.size();
  double error = norm_of(difference(actual, expected)), size = norm_of(expected);
  bool near = error <= relative * size + absolute;
  auto result = near ? ::testing::AssertionSuccess() : ::testing::AssertionFailure();
  return result << "|difference| = " << error << ", |expected| = " << size << ": " << error / size << " of it, allowed "
                << relative << " and " << absolute << " absolute";
}
inline ::testing::AssertionResult near_by_norm(const ConstTensor& actual, const Values& expected, double relative,
                                               double absolute = 0) {
  return near_by_norm(to_doubles(actual), expected, relative, absolute);
}

// Every row of `columns` values on its own: |a - b| <= relative |b| + of_typical * (root mean square of the row norms
// of b). The defaults are for bf16, a row being one token's head.
struct RowTolerance {
  double relative = 8e-3;
  double of_typical = 3e-2;
};
inline ::testing::AssertionResult near_by_rows(const Values& actual, const Values& expected, int64_t columns,
                                               RowTolerance tolerance = {}) {
  size_t width = size_t(columns), rows = columns > 0 ? expected.size() / width : 0;
  if (actual.size() != expected.size() || rows * width != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " and " << expected.size() << " values in rows of "
                                         << columns;
  double typical = rows ? norm_of(expected) / std::sqrt(double(rows)) : 0;
  Values errors = difference(actual, expected);
  for (size_t row = 0; row < rows; ++row) {
    double error = norm_of(&errors[row * width], width), size = norm_of(&expected[row * width], width);
    if (!(error <= tolerance.relative * size + tolerance.of_typical * typical))
      return ::testing::AssertionFailure() << "row " << row << ": |difference| = " << error << ", |expected| = " << size
                                           << ", typical row " << typical;
  }
  return ::testing::AssertionSuccess() << rows << " rows near";
}

// Same bits: type, shape and every element. NaNs compare by their bits.
inline ::testing::AssertionResult same_bits(const ConstTensor& a, const ConstTensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return ::testing::AssertionFailure() << a.shape().text() << " against " << b.shape().text();
  size_t width = size_t(bytes_of(a.dtype()));
  const OnHost host_a(a), host_b(b);
  std::vector<const std::byte*> of_a(size_t(a.elements()));
  for_each_element(
      a, [&](int64_t i, int64_t offset) { of_a[size_t(i)] = host_a.as<std::byte>() + size_t(offset) * width; });
  int64_t first_wrong = -1;
  for_each_element(b, [&](int64_t i, int64_t offset) {
    const std::byte* of_b = host_b.as<std::byte>() + size_t(offset) * width;
    if (first_wrong < 0 && std::memcmp(of_a[size_t(i)], of_b, width) != 0) first_wrong = i;
  });
  if (first_wrong < 0) return ::testing::AssertionSuccess() << "same bits";
  return ::testing::AssertionFailure() << "element " << first_wrong << " differs";
}

// Planted mistakes: a tolerance is worth something only if it refuses these.
inline ::testing::AssertionResult fails(const ::testing::AssertionResult& check) {
  if (!check) return ::testing::AssertionSuccess() << "refused: " << check.message();
  return ::testing::AssertionFailure() << "a planted mistake passed: " << check.message();
}
// Every value one place late: an index off by one.
inline Values shifted(Values values) {
  if (!values.empty()) std::rotate(values.begin(), values.end() - 1, values.end());
  return values;
}
// One row of `columns` values scaled by `factor`: 0 forgets it, 2 adds it twice, -1 turns its sign.
inline Values with_row_scaled(Values values, int64_t columns, int64_t row, double factor) {
  for (int64_t i = row * columns; i < (row + 1) * columns; ++i) values[size_t(i)] *= factor;
  return values;
}
inline Values scaled(Values values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

// d f / d x by central differences in double, one element at a time.
template <class F>
Values finite_differences(Values x, F&& f, double step = 1e-5) {
  Values gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    double at = x[i];
    x[i] = at + step;
    double above = f(x);
    x[i] = at - step;
    gradient[i] = (above - f(x)) / (2 * step);
    x[i] = at;
  }
  return gradient;
}
// sum_i a_i b_i: a loss whose gradient by `a` is b.
inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace keel::testing
