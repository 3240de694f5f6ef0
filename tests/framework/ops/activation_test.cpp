#include "framework/ops/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/reference/activation.h"

namespace keel {
namespace {

using namespace testing;
using ops::ActivationKind;

constexpr ActivationKind kKinds[] = {ActivationKind::swiglu, ActivationKind::geglu, ActivationKind::gelu};

int64_t input_width(ActivationKind kind, int64_t features) {
  return ops::is_gated(kind) ? 2 * features : features;
}

TEST(Activation, RandomShapesEqualTheReference) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (ActivationKind kind : kKinds)
      for (DType dtype : {DType::f32, DType::bf16}) {
        int64_t rows = random_integer(seed, 1, 1, 90), features = random_integer(seed, 2, 1, 500);
        if (seed % 2 == 0) features = (features + 7) / 8 * 8;  // rows that wide loads fit
        SCOPED_TRACE(fmt::format("kind {} {} [{}, {}]", int(kind), name_of(dtype), rows, features));
        DeviceTensor x = random_tensor({rows, input_width(kind, features)}, dtype, seed, 3);
        DeviceTensor dy = random_tensor({rows, features}, dtype, seed + 50), y({rows, features}, dtype);
        ops::activation_forward(y, x, kind);
        Values want = reference::activation_forward(kind, to_doubles(x), features);
        Values d_want = reference::activation_backward(kind, to_doubles(dy), to_doubles(x), features);
        EXPECT_TRUE(near_by_norm(y, want, one_op_tolerance(dtype)));
        DeviceTensor dx(x.tensor.shape(), dtype), again(y.tensor.shape(), dtype);
        ops::activation_backward(dx, again, dy, x, kind);
        EXPECT_TRUE(near_by_norm(dx, d_want, one_op_tolerance(dtype)));
        EXPECT_TRUE(same_bits(again, y)) << "forward's output once more";
        ops::activation_backward(x, dy, dy, x, kind);
        EXPECT_TRUE(same_bits(dx, x) && same_bits(y, dy)) << "in place";
        if (rows * features > 50) {
          EXPECT_TRUE(fails(near_by_norm(shifted(to_doubles(dx)), d_want, kOneOpBf16)));
        }
      }
}

TEST(Activation, StridedRowsAreTheSameBits) {
  for (ActivationKind kind : kKinds)
    for (DType dtype : {DType::f32, DType::bf16}) {
      const int64_t wide = input_width(kind, 37);
      DeviceTensor x_rows = random_tensor({9, wide + 5}, dtype, 1), dy_rows = random_tensor({9, 40}, dtype, 2);
      DeviceTensor y_rows({9, 43}, dtype), dx_rows({9, wide + 3}, dtype), y({9, 37}, dtype), dx({9, wide}, dtype);
      const Tensor x_part = x_rows.tensor.slice(1, 0, wide), dy_part = dy_rows.tensor.slice(1, 0, 37);
      const Tensor y_part = y_rows.tensor.slice(1, 0, 37), dx_part = dx_rows.tensor.slice(1, 0, wide);
      DeviceTensor x = tensor_of({9, wide}, dtype, to_doubles(x_part)),
                   dy = tensor_of({9, 37}, dtype, to_doubles(dy_part));
      ops::activation_forward(y_part, x_part, kind);
      DeviceTensor again_rows({9, 41}, dtype);
      const Tensor again_part = again_rows.tensor.slice(1, 0, 37);
      ops::activation_backward(dx_part, again_part, dy_part, x_part, kind);
      ops::activation_forward(y, x, kind);
      EXPECT_EQ(to_doubles(y_part), to_doubles(y));
      EXPECT_EQ(to_doubles(again_part), to_doubles(y));
      ops::activation_backward(dx, y, dy, x, kind);
      EXPECT_EQ(to_doubles(dx_part), to_doubles(dx));
    }
}

// Each value on its own, far out on both sides: a few units in the last place of fp32.
TEST(Activation, SmallRelativeErrorEverywhere) {
  for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::gelu}) {
    double reach = kind == ActivationKind::swiglu ? 85 : 6;
    int64_t n = 40001;
    Values points(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) points[size_t(i)] = float(-reach + 2 * reach * double(i) / double(n - 1));
    Values x = points;
    if (ops::is_gated(kind)) x.insert(x.end(), size_t(n), 1.0);
    DeviceTensor in = tensor_of({1, int64_t(x.size())}, DType::f32, x), y({1, n}, DType::f32);
    ops::activation_forward(y, in, kind);
    Values got = to_doubles(y);
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      double s = kind == ActivationKind::swiglu
                     ? points[i]
                     : 2 * std::sqrt(2 / M_PI) * (points[i] + 0.044715 * std::pow(points[i], 3));
      double want = points[i] / (1 + std::exp(-s));
      // A rounding error of the exponential's argument s grows by |s|; gelu's has several.
      if (want != 0) worst = std::max(worst, std::abs(got[i] - want) / std::abs(want) / (3 + 2 * std::abs(s)));
    }
    EXPECT_LT(worst, 0x1p-23) << "kind " << int(kind);
  }
}

TEST(Activation, ExtremesStayFiniteAndNaNStaysNaN) {
  for (ActivationKind kind : kKinds) {
    Values gate = {-1e30, -1e4, -100, 0, 100, 1e4, 1e15, std::nan("")};
    Values x = gate, expected = {0, 0, 0, 0, 100, 1e4, 1e15};
    if (ops::is_gated(kind)) x.insert(x.end(), 8, 1.0);
    DeviceTensor in = tensor_of({1, int64_t(x.size())}, DType::f32, x), y({1, 8}, DType::f32);
    DeviceTensor dy = tensor_of({1, 8}, DType::f32, Values(8, 1.0)), dx(in.tensor.shape(), DType::f32);
    ops::activation_backward(dx, y, dy, in, kind);
    ops::activation_forward(y, in, kind);
    const Values value = to_doubles(y), slope = to_doubles(dx);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_FLOAT_EQ(float(value[i]), float(expected[i])) << gate[i];
      EXPECT_FLOAT_EQ(float(slope[i]), i < 3 ? 0.f : i == 3 ? 0.5f : 1.f) << gate[i];
    }
    EXPECT_TRUE(std::isnan(value[7]) && std::isnan(slope[7]));
  }
}

TEST(ActivationReference, GradientsAreFiniteDifferences) {
  for (ActivationKind kind : kKinds) {
    Values x = random_values(2 * input_width(kind, 5), 1, 2), dy = random_values(10, 2);
    auto by_x = [&](const Values& at) { return dot(dy, reference::activation_forward(kind, at, 5)); };
    EXPECT_TRUE(near_by_norm(reference::activation_backward(kind, dy, x, 5), finite_differences(x, by_x), 1e-8));
  }
}

TEST(Activation, RefusesWhatDoesNotFit) {
  DeviceTensor y({2, 4}, DType::f32), x({2, 4}, DType::f32);
  try {
    ops::activation_forward(y, x, ActivationKind::swiglu);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("2 rows of 8 features expected, got [2, 4]"));
  }
}

}  // namespace
}  // namespace keel
