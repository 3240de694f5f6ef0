#include "framework/ops/matmul/matmul.h"

#include <omp.h>

#include <cstdlib>
#include <thread>

#include "framework/ops/matmul/matmul_cpu.h"
#include "framework/ops/support/cpu_traits.h"
#include "tests/support/errors.h"
#include "tests/support/reference/matmul.h"

namespace keel::ops {
namespace {

using namespace keel::testing;
using reference::LinearSizes;

// A matrix whose rows are 5 elements longer than it is wide, so that strides matter; the margin holds NaN.
struct Strided {
  Strided(int64_t rows, int64_t columns, DType dtype, uint64_t seed)
      : owned({rows, columns + 5}, dtype), view(owned.tensor.slice(1, 0, columns)) {
    set_values(owned, Values(size_t(owned.tensor.elements()), std::nan("")));
    fill_random(view, seed);
  }
  // Nothing was written beside the view.
  bool margin_is_untouched() const {
    Values margin = to_doubles(owned.tensor.slice(1, view.size(1), owned.tensor.size(1)));
    return std::all_of(margin.begin(), margin.end(), [](double value) { return std::isnan(value); });
  }
  DeviceTensor owned;
  Tensor view;
};

Values plus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Sizes with tails, vectors, scalars and more than one block of a widened product.
std::vector<LinearSizes> shapes() {
  std::vector<LinearSizes> shapes{{1, 1, 1},    {1, 7, 5},    {5, 1, 9},    {9, 6, 1},     {64, 64, 64},
                                  {33, 1, 1},   {1, 1, 40},   {1, 130, 1},  {16, 48, 80},  {129, 65, 33},
                                  {7, 2100, 9}, {2100, 9, 7}, {5, 9, 2100}, {2060, 1, 20}, {200, 17, 2050}};
  for (uint64_t i = 0; i < 12; ++i)
    shapes.push_back(
        {random_integer(7, 3 * i, 1, 150), random_integer(7, 3 * i + 1, 1, 150), random_integer(7, 3 * i + 2, 1, 150)});
  return shapes;
}

std::string text(LinearSizes s, DType dtype) {
  return fmt::format("n {} outputs {} inputs {} {}", s.n, s.outputs, s.inputs, name_of(dtype));
}

class EveryType : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double tolerance() const { return one_op_tolerance(dtype()); }
};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(MatmulReference, GradientsAreTheSlopesOfForward) {
  LinearSizes s{3, 4, 5};
  Values x = random_values(15, 1), w = random_values(20, 2), bias = random_values(4, 3), dy = random_values(12, 4);
  auto slope_of_x =
      finite_differences(x, [&](const Values& x) { return dot(reference::linear_forward(x, w, bias, s), dy); });
  auto slope_of_w =
      finite_differences(w, [&](const Values& w) { return dot(reference::linear_forward(x, w, bias, s), dy); });
  auto slope_of_b =
      finite_differences(bias, [&](const Values& b) { return dot(reference::linear_forward(x, w, b, s), dy); });
  EXPECT_TRUE(near_by_norm(reference::linear_backward_input(dy, w, s), slope_of_x, 1e-8));
  EXPECT_TRUE(near_by_norm(reference::linear_backward_weight(dy, x, s), slope_of_w, 1e-8));
  EXPECT_TRUE(near_by_norm(reference::linear_backward_bias(dy, s), slope_of_b, 1e-8));
}

TEST(Matmul, WorkedByHand) {
  DeviceTensor a = tensor_of({2, 3}, DType::f32, {1, 2, 3, 4, 5, 6}), c({2, 2}, DType::f32);
  DeviceTensor b = tensor_of({3, 2}, DType::f32, {7, 8, 9, 10, 11, 12});
  matmul(c, a, b);
  EXPECT_EQ(to_doubles(c), (Values{58, 64, 139, 154}));
  matmul(c, a, b, {.accumulate = true});
  EXPECT_EQ(to_doubles(c), (Values{116, 128, 278, 308}));
}

TEST_P(EveryType, LinearForwardEqualsReference) {
  for (LinearSizes s : shapes()) {
    SCOPED_TRACE(text(s, dtype()));
    Strided x(s.n, s.inputs, dtype(), 1), w(s.outputs, s.inputs, dtype(), 2), y(s.n, s.outputs, dtype(), 3);
    DeviceTensor bias = random_tensor({s.outputs}, DType::f32, 4);
    PackedWeight packed;
    packed.refresh(w.view);
    for (ConstTensor b : {ConstTensor(), ConstTensor(bias)}) {
      linear_forward(y.view, x.view, packed, b);
      Values expected =
          reference::linear_forward(to_doubles(x.view), to_doubles(w.view), b.defined() ? to_doubles(b) : Values(), s);
      EXPECT_TRUE(near_by_norm(y.view, expected, tolerance()));
      EXPECT_TRUE(near_by_rows(to_doubles(y.view), expected, s.outputs));
      EXPECT_TRUE(y.margin_is_untouched());
      if (expected.size() < 4) continue;
      EXPECT_TRUE(fails(near_by_norm(shifted(to_doubles(y.view)), expected, tolerance())));
    }
  }
}

// The bias is fp32 and the sum is rounded once it is small: neither the bias nor the product may be rounded alone.
TEST(LinearForward, BiasThatTheProductCancels) {
  const LinearSizes s{40, 24, 16};
  Strided x(s.n, s.inputs, DType::bf16, 1), w(s.outputs, s.inputs, DType::bf16, 2), y(s.n, s.outputs, DType::bf16, 3);
  set_values(x.view.slice(1, 0, 1), Values(size_t(s.n), 1.0));
  set_values(w.view.slice(1, 0, 1), Values(size_t(s.outputs), -300.0));
  DeviceTensor bias = random_tensor({s.outputs}, DType::f32, 4, 1, 300);
  PackedWeight packed;
  packed.refresh(w.view);
  linear_forward(y.view, x.view, packed, bias);
  const auto expected = [&](const Values& b) {
    return reference::linear_forward(to_doubles(x.view), to_doubles(w.view), b, s);
  };
  EXPECT_TRUE(near_by_norm(y.view, expected(to_doubles(bias)), kOneOpBf16));
  EXPECT_TRUE(y.margin_is_untouched());
  const auto rounded = [](Values values) {
    for (double& value : values) value = float(bf16(float(value)));
    return values;
  };
  EXPECT_TRUE(fails(near_by_norm(y.view, expected(rounded(to_doubles(bias))), kOneOpBf16)));
  Values late = rounded(expected({}));
  for (size_t i = 0; i < late.size(); ++i) late[i] += to_doubles(bias)[i % size_t(s.outputs)];
  EXPECT_TRUE(fails(near_by_norm(y.view, late, kOneOpBf16)));
}

// What the library offers first, it may not take: the next is tried, and a bias it has no algorithm for comes after.
TEST_P(EveryType, AlgorithmsThatAreRefusedAreReplaced) {
  if (!on_stand_in()) GTEST_SKIP() << "a real library does what it does";
  LinearSizes s{30, 21, 121};
  for (const char* refused : {"states", "calls", "biases", "bias calls"}) {
    SCOPED_TRACE(refused);
    ++s.n;  // a problem of its own
    Strided x(s.n, s.inputs, dtype(), 1), w(s.outputs, s.inputs, dtype(), 2), y(s.n, s.outputs, dtype(), 3);
    DeviceTensor bias = random_tensor({s.outputs}, DType::f32, 4);
    PackedWeight packed;
    packed.refresh(w.view);
    setenv("KEEL_CUDA_HOST_REFUSES", refused, 1);
    for (int call = 0; call < 2; ++call) {
      linear_forward(y.view, x.view, packed, bias);
      const Values expected = reference::linear_forward(to_doubles(x.view), to_doubles(w.view), to_doubles(bias), s);
      EXPECT_TRUE(near_by_norm(y.view, expected, tolerance()));
      EXPECT_TRUE(y.margin_is_untouched());
    }
    unsetenv("KEEL_CUDA_HOST_REFUSES");
  }
}

TEST_P(EveryType, LinearBackwardInputEqualsReference) {
  for (LinearSizes s : shapes()) {
    SCOPED_TRACE(text(s, dtype()));
    Strided dy(s.n, s.outputs, dtype(), 1), w(s.outputs, s.inputs, dtype(), 2), dx(s.n, s.inputs, dtype(), 3);
    PackedWeight packed;
    packed.refresh(w.view);
    linear_backward_input(dx.view, dy.view, packed);
    Values expected = reference::linear_backward_input(to_doubles(dy.view), to_doubles(w.view), s);
    EXPECT_TRUE(near_by_norm(dx.view, expected, tolerance()));
    EXPECT_TRUE(dx.margin_is_untouched());
  }
}

TEST_P(EveryType, WeightAndBiasGradientsAddTo) {
  for (LinearSizes s : shapes()) {
    SCOPED_TRACE(text(s, dtype()));
    Strided dy(s.n, s.outputs, dtype(), 1), x(s.n, s.inputs, dtype(), 2);
    DeviceTensor dw = random_tensor({s.outputs, s.inputs}, DType::f32, 3),
                 db = random_tensor({s.outputs}, DType::f32, 4);
    Values dy_values = to_doubles(dy.view), before_w = to_doubles(dw), before_b = to_doubles(db);
    linear_backward_weight(dw, dy.view, x.view);
    linear_backward_bias(db, dy.view);
    Values expected_w = plus(reference::linear_backward_weight(dy_values, to_doubles(x.view), s), before_w);
    Values expected_b = plus(reference::linear_backward_bias(dy_values, s), before_b);
    // Both gradients stay fp32 whatever the type of the factors.
    EXPECT_TRUE(near_by_norm(dw, expected_w, kFloat32));
    EXPECT_TRUE(near_by_norm(db, expected_b, kFloat32));
  }
}

TEST_P(EveryType, MatmulEqualsReferenceWithEveryTranspose) {
  for (LinearSizes s : shapes()) {
    for (int mask = 0; mask < 8; ++mask) {
      SCOPED_TRACE(text(s, dtype()) + " mask " + std::to_string(mask));
      bool ta = mask & 1, tb = mask & 2, accumulate = mask & 4;
      Strided a(ta ? s.inputs : s.n, ta ? s.n : s.inputs, dtype(), 1);
      Strided b(tb ? s.outputs : s.inputs, tb ? s.inputs : s.outputs, dtype(), 2);
      DeviceTensor c = random_tensor({s.n, s.outputs}, DType::f32, 3);
      Values before = accumulate ? to_doubles(c) : Values(size_t(s.n * s.outputs), 0.0);
      matmul(c, a.view, b.view, {ta, tb, accumulate});
      Values a_values = to_doubles(a.view), b_values = to_doubles(b.view);
      if (ta) a_values = reference::transposed(a_values, s.inputs, s.n);
      if (tb) b_values = reference::transposed(b_values, s.outputs, s.inputs);
      Values expected = plus(reference::matmul(a_values, b_values, {s.n, s.outputs, s.inputs}), before);
      EXPECT_TRUE(near_by_norm(c, expected, kFloat32));
    }
  }
}

// On processors that multiply bf16 the public functions take the other way; here both are held to the reference.
TEST(WidenedProduct, EqualsReference) {
  if (test_device().kind != DeviceKind::cpu) GTEST_SKIP() << "a way of the CPU";
  for (LinearSizes s : shapes()) {
    SCOPED_TRACE(text(s, DType::bf16));
    Strided x(s.n, s.inputs, DType::bf16, 1), w(s.outputs, s.inputs, DType::bf16, 2), y(s.n, s.outputs, DType::bf16, 3);
    DeviceTensor bias = random_tensor({s.outputs}, DType::f32, 4);
    cpu::widened_product({onednn::matrix_of(y.view), onednn::matrix_of(x.view),
                          onednn::transposed(onednn::matrix_of(w.view)), bias.tensor.as<float>(), false});
    Values expected = reference::linear_forward(to_doubles(x.view), to_doubles(w.view), to_doubles(bias), s);
    EXPECT_TRUE(near_by_norm(y.view, expected, kOneOpBf16));
    EXPECT_TRUE(y.margin_is_untouched());
  }
}

// A weight in tiles goes through the same code whatever its type; oneDNN's plain loops read tiles on every CPU.
TEST(BlockedWeight, EqualsReferenceAndFollowsRefresh) {
  if (test_device().kind != DeviceKind::cpu) GTEST_SKIP() << "a way of the CPU";
  for (int tile : {16, 64}) {
    for (LinearSizes s : shapes()) {
      if (s.n * s.outputs * s.inputs > 1000000) continue;  // the plain loops are slow
      SCOPED_TRACE(text(s, DType::f32) + fmt::format(" tile {}", tile));
      OwnedTensor x = random_tensor({s.n, s.inputs}, DType::f32, 1), y({s.n, s.outputs}, DType::f32);
      OwnedTensor bias = random_tensor({s.outputs}, DType::f32, 4);
      onednn::Blocked blocked;
      for (uint64_t seed : {2, 3}) {
        OwnedTensor w = random_tensor({s.outputs, s.inputs}, DType::f32, seed);
        onednn::Matrix second = onednn::transposed(onednn::matrix_of(w));
        blocked.assign_tiles(second, tile);
        EXPECT_GE(blocked.size_bytes(), w.tensor.size_bytes());
        second.data = nullptr;  // only the copy may be read
        ASSERT_TRUE(onednn::run({onednn::matrix_of(y), onednn::matrix_of(x), second, bias.tensor.as<float>(), false},
                                onednn::Effort::reference, &blocked));
        Values expected = reference::linear_forward(to_doubles(x), to_doubles(w), to_doubles(bias), s);
        EXPECT_TRUE(near_by_norm(y, expected, kFloat32));
      }
    }
  }
}

// What is held is read: oneDNN 2 has no product of a blocked weight between rows with a gap, and then none is kept.
TEST(BlockedWeight, IsReadBetweenTheRowsItWasChosenFor) {
  if (test_device().kind != DeviceKind::cpu) GTEST_SKIP() << "a way of the CPU";
  constexpr int64_t n = 64, K = 96, N = 2048;
  for (DType dtype : {DType::f32, DType::bf16}) {
    if (dtype == DType::bf16 && !bf16_products_are_native()) continue;
    for (int64_t gap : {0, 32}) {
      SCOPED_TRACE(fmt::format("{} gap {}", name_of(dtype), gap));
      OwnedTensor x = random_tensor({n, K}, dtype, 1), w = random_tensor({N, K}, dtype, 2), y({n, N + gap}, dtype);
      const Tensor rows = y.tensor.slice(1, 0, N);
      onednn::Matrix second = onednn::transposed(onednn::matrix_of(w));
      onednn::Blocked blocked, planned;
      blocked.assign_preferred(second, {K, N + gap});
      second.data = nullptr;
      planned.assign_preferred(second, {K, N + gap});
      EXPECT_EQ(planned.size_bytes(), blocked.size_bytes());
      if (!blocked.defined()) continue;
      ASSERT_TRUE(onednn::run({onednn::matrix_of(rows), onednn::matrix_of(x), second}, onednn::Effort::fast, &blocked));
      const Values expected = reference::linear_forward(to_doubles(x), to_doubles(w), {}, {n, N, K});
      EXPECT_TRUE(near_by_norm(rows, expected, dtype == DType::f32 ? kFloat32 : kOneOpBf16));
    }
  }
}

TEST_P(EveryType, NothingInNothingOut) {
  DeviceTensor w = random_tensor({4, 3}, dtype(), 1), x({0, 3}, dtype()), y({0, 4}, dtype());
  DeviceTensor dw = random_tensor({4, 3}, DType::f32, 2), db = random_tensor({4}, DType::f32, 3);
  Values dw_before = to_doubles(dw), db_before = to_doubles(db);
  PackedWeight packed;
  packed.refresh(w);
  linear_forward(y, x, packed);
  linear_backward_input(x, y, packed);
  linear_backward_weight(dw, y, x);
  linear_backward_bias(db, y);
  EXPECT_EQ(to_doubles(dw), dw_before);
  EXPECT_EQ(to_doubles(db), db_before);
  matmul(dw, DeviceTensor({4, 0}, dtype()), DeviceTensor({0, 3}, dtype()));
  EXPECT_EQ(to_doubles(dw), Values(12, 0.0));
}

TEST_P(EveryType, RefreshFollowsTheWeight) {
  DeviceTensor w = random_tensor({40, 24}, dtype(), 1), x = random_tensor({10, 24}, dtype(), 2), y({10, 40}, dtype());
  PackedWeight packed;
  packed.refresh(w);
  int64_t size_bytes = packed.size_bytes();
  fill_random(w, 5);
  packed.refresh(w);
  linear_forward(y, x, packed);
  Values expected = reference::linear_forward(to_doubles(x), to_doubles(w), {}, {10, 40, 24});
  EXPECT_TRUE(near_by_norm(y, expected, tolerance()));
  EXPECT_EQ(packed.size_bytes(), size_bytes);
  EXPECT_EQ(packed.rows(), 40);
  EXPECT_EQ(packed.columns(), 24);
}

TEST_P(EveryType, SameBitsInEveryRunAndThread) {
  DeviceTensor w = random_tensor({300, 200}, dtype(), 1), x = random_tensor({700, 200}, dtype(), 2);
  PackedWeight packed;
  packed.refresh(w);
  DeviceTensor first({700, 300}, dtype()), again({700, 300}, dtype()), elsewhere({700, 300}, dtype());
  linear_forward(first, x, packed);
  linear_forward(again, x, packed);
  std::thread([&] { linear_forward(elsewhere, x, packed); }).join();
  EXPECT_TRUE(same_bits(first, again));
  EXPECT_TRUE(same_bits(first, elsewhere));
}

TEST_P(EveryType, BiasGradientDoesNotDependOnThreads) {
  DeviceTensor dy = random_tensor({3001, 130}, dtype(), 2), one({130}, DType::f32), two({130}, DType::f32);
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  linear_backward_bias(one, dy);
  omp_set_num_threads(3);
  linear_backward_bias(two, dy);
  omp_set_num_threads(threads);
  EXPECT_TRUE(same_bits(one, two));
}

TEST_P(EveryType, NonFiniteValuesComeThrough) {
  DeviceTensor a = tensor_of({1, 2}, dtype(), {std::nan(""), 1}), b = tensor_of({2, 1}, dtype(), {1, 1});
  DeviceTensor c({1, 1}, dtype());
  matmul(c, a, b);
  EXPECT_TRUE(std::isnan(to_doubles(c)[0]));
  set_values(a, {INFINITY, 1});
  matmul(c, a, b);
  EXPECT_TRUE(std::isinf(to_doubles(c)[0]));
}

TEST(PackedWeight, PlansOnTheMetaDevice) {
  Device meta{DeviceKind::meta};
  OwnedTensor w({64, 32}, DType::bf16, meta), x({8, 32}, DType::bf16, meta), y({8, 64}, DType::bf16, meta);
  PackedWeight packed;
  packed.refresh(w);
  linear_forward(y, x, packed);
  linear_backward_input(x, y, packed);
  const OwnedTensor here({64, 32}, DType::bf16);
  PackedWeight real;
  real.refresh(here);
  EXPECT_EQ(packed.size_bytes(), real.size_bytes());
}

TEST(Matmul, AGuardedHostIsSomeHundredsAheadAtMost) {
  if (!on_stand_in()) GTEST_SKIP() << "a real GPU may keep up";
  const DeviceTensor a({4, 4}, DType::f32), b({4, 4}, DType::f32), c({4, 4}, DType::f32);
  ops::matmul(c, a, b);
  Stream::current(test_device()).synchronize();
  const CountedWaits waits;
  for (int i = 0; i < 1000; ++i) ops::matmul(c, a, b);
  EXPECT_GT(waits.count, 600);
}

TEST(Matmul, ErrorsNameBothValues) {
  using ::testing::HasSubstr;
  DeviceTensor a({2, 3}, DType::f32), b({4, 5}, DType::f32), c({2, 5}, DType::f32), half({2, 3}, DType::bf16);
  EXPECT_THAT(message_of([&] { matmul(c, a, b); }), HasSubstr("[2, 3] times [4, 5]"));
  EXPECT_THAT(message_of([&] { matmul(a, c, b, {false, true, false}); }), HasSubstr("[2, 3]"));
  EXPECT_THAT(message_of([&] { matmul(c, half, DeviceTensor({3, 5}, DType::f32)); }), HasSubstr("bf16 times fp32"));
  EXPECT_THAT(message_of([&] { matmul(half, DeviceTensor({2, 2}, DType::f32), a); }), HasSubstr("bf16 from fp32"));
  EXPECT_THAT(
      message_of([&] {
        matmul(half, DeviceTensor({2, 2}, DType::bf16), DeviceTensor({2, 3}, DType::bf16), {.accumulate = true});
      }),
      HasSubstr("must be fp32"));
  EXPECT_THAT(message_of([&] { linear_forward(c, a, PackedWeight()); }), HasSubstr("never refreshed"));
  EXPECT_THAT(message_of([&] { linear_backward_bias(DeviceTensor({4}, DType::f32), c); }), HasSubstr("[4] for 5"));
}

TEST(ProductBackend, SaysWhatRunsAndWhy) {
  EXPECT_THAT(product_backend(), ::testing::HasSubstr("oneDNN "));
  EXPECT_EQ(product_backend().find("rounded values") == std::string::npos, bf16_products_are_native());
}

TEST(ProductBackend, SlowBf16IsLeftAloneUnlessAskedFor) {
  const auto says_slower = [] { return onednn::bf16_support().reason.find("slower") != std::string::npos; };
  const char* asked_for = std::getenv("DNNL_MAX_CPU_ISA");
  const std::string before = asked_for ? asked_for : "";
  unsetenv("DNNL_MAX_CPU_ISA");
  const bool has_bf16 = onednn::version_and_instructions().find("with bf16") != std::string::npos;  // and no AMX
  EXPECT_EQ(says_slower(), has_bf16 && cpu::has_slow_bf16());
  setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16", 1);
  EXPECT_FALSE(says_slower());
  asked_for ? setenv("DNNL_MAX_CPU_ISA", before.c_str(), 1) : unsetenv("DNNL_MAX_CPU_ISA");
}

TEST(Matmul, ARefusedProductIsNamedWithAllThatMayBeTheReason) {
  if (!on_stand_in()) GTEST_SKIP() << "a real library does what it does";
  const DeviceTensor a({17, 40}, DType::bf16), b({19, 40}, DType::bf16), c({17, 19}, DType::f32);
  setenv("KEEL_CUDA_HOST_REFUSES", "products", 1);
  EXPECT_THAT(message_of([&] { matmul(c, a, b, {.transpose_b = true}); }),
              ::testing::AllOf(::testing::HasSubstr(
                                   "cuBLASLt has no algorithm for fp32 [17, 19] (rows 19 elements apart, aligned to "),
                               ::testing::HasSubstr("bf16 [19, 40] transposed (rows 40 elements apart")));
  unsetenv("KEEL_CUDA_HOST_REFUSES");
}

}  // namespace
}  // namespace keel::ops
