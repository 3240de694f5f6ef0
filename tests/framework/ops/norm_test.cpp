#include "framework/ops/norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "tests/support/compare.h"
#include "tests/support/reference/norm.h"

namespace keel {
namespace {

using namespace testing;
using ops::NormKind;

struct Case {
  int64_t rows, width;
  DType stream, activation;
  ops::NormOptions options;
  bool bias = false;
};

std::string describe(const Case& c) {
  return fmt::format("{} rows of {}, stream {}, activations {}, kind {}, zero_centered {}, bias {}", c.rows, c.width,
                     name_of(c.stream), name_of(c.activation), int(c.options.kind), c.options.zero_centered, c.bias);
}

// A call's tensors, its results and the reference of the same values.
struct Call {
  Call(const Case& c, uint64_t seed)
      : residual(random_tensor({c.rows, c.width}, c.stream, seed, 3, 0.5)),
        branch(random_tensor({c.rows, c.width}, c.activation, seed + 1)),
        sum({c.rows, c.width}, c.stream),
        dx(random_tensor({c.rows, c.width}, c.stream, seed + 2)),
        y({c.rows, c.width}, c.activation),
        dy(random_tensor({c.rows, c.width}, c.activation, seed + 3)),
        weight(random_tensor({c.width}, DType::f32, seed + 4, 0.3, c.options.zero_centered ? 0 : 1)),
        d_weight(random_tensor({c.width}, DType::f32, seed + 5)),
        inverse({c.rows}, DType::f32),
        options(c.options) {
    if (c.options.kind == NormKind::layer) mean = DeviceTensor({c.rows}, DType::f32);
    if (c.bias) bias = random_tensor({c.width}, DType::f32, seed + 6);
    if (c.bias) d_bias = random_tensor({c.width}, DType::f32, seed + 7);
    norm = {c.options.kind == NormKind::layer, double(c.options.eps), c.options.zero_centered, to_doubles(weight),
            c.bias ? to_doubles(bias) : Values{}};
  }
  ops::NormWeights weights() const { return {weight, bias}; }
  ops::NormStatistics statistics() const { return {inverse, mean}; }

  void forward() const {
    ops::norm_forward({.y = y, .statistics = statistics(), .x = residual, .weights = weights(), .options = options});
  }
  void forward_added() const { ops::norm_forward({y, sum, statistics(), residual, branch, weights(), options}); }
  void backward(ConstTensor x, bool accumulate) const {
    ops::norm_backward({dx, {d_weight, d_bias}, dy, x, statistics(), weights(), options, accumulate});
  }

  DeviceTensor residual, branch, sum, dx, y, dy, weight, d_weight, inverse, mean, bias, d_bias;
  ops::NormOptions options;
  reference::Norm norm;
};

Values plus(const Values& a, const Values& b) {
  Values sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

void expect_like_reference(const Case& c, uint64_t seed) {
  SCOPED_TRACE(describe(c));
  Call run(c, seed);
  const double activation = one_op_tolerance(c.activation), stream = one_op_tolerance(c.stream);
  run.forward_added();
  EXPECT_TRUE(near_by_norm(run.sum, plus(to_doubles(run.residual), to_doubles(run.branch)), stream));
  Values x = to_doubles(run.sum);  // as stored: what backward sees
  Values expected = reference::norm_forward(run.norm, x);
  EXPECT_TRUE(near_by_norm(run.y, expected, activation));
  EXPECT_TRUE(near_by_rows(to_doubles(run.y), expected, c.width));

  run.forward();
  EXPECT_TRUE(near_by_norm(run.y, reference::norm_forward(run.norm, to_doubles(run.residual)), activation));

  run.forward_added();
  auto want = reference::norm_backward(run.norm, to_doubles(run.dy), x);
  for (bool accumulate : {false, true}) {
    Values before = to_doubles(run.dx), weight_before = to_doubles(run.d_weight);
    Values bias_before = c.bias ? to_doubles(run.d_bias) : Values{};
    run.backward(run.sum, accumulate);
    EXPECT_TRUE(near_by_norm(run.dx, accumulate ? plus(want.dx, before) : want.dx, stream));
    EXPECT_TRUE(near_by_norm(run.d_weight, plus(want.d_weight, weight_before), kFloat32));
    if (c.bias) {
      EXPECT_TRUE(near_by_norm(run.d_bias, plus(want.d_bias, bias_before), kFloat32));
    }
  }
}

TEST(Norm, RandomShapesEqualTheReference) {
  for (uint64_t seed = 1; seed <= 24; ++seed)
    for (DType stream : {DType::f32, DType::bf16})
      for (DType activation : {DType::f32, DType::bf16}) {
        auto pick = [&](uint64_t i, int64_t low, int64_t high) { return random_integer(seed, i, low, high); };
        Case c{pick(1, 1, 200), pick(2, 2, 400), stream, activation, {}};
        if (seed % 2 == 0) c.width = (c.width + 7) / 8 * 8;  // rows that wide loads fit
        c.options.kind = NormKind(pick(3, 0, 2));
        c.options.zero_centered = pick(4, 0, 2);
        c.options.eps = pick(5, 0, 2) ? 1e-6f : 1e-2f;
        c.bias = c.options.kind == NormKind::layer && pick(6, 0, 2);
        expect_like_reference(c, seed * 100);
      }
}

// GPUs keep rows in registers up to some width, and read wider ones again.
TEST(Norm, WideRowsEqualTheReference) {
  for (int64_t width : {4096, 4104, 8192, 8200, 20000, 20001})
    for (DType activation : {DType::f32, DType::bf16})
      for (NormKind kind : {NormKind::rms, NormKind::layer}) {
        Case c{3, width, activation, activation, {}};
        c.options.kind = kind;
        c.bias = kind == NormKind::layer;
        expect_like_reference(c, uint64_t(width));
      }
}

TEST(Norm, SumMayLieOverTheResidual) {
  Case c{5, 33, DType::f32, DType::bf16, {}};
  Call apart(c, 7), together(c, 7);
  apart.forward_added();
  ops::norm_forward({together.y, together.residual, together.statistics(), together.residual, together.branch,
                     together.weights(), c.options});
  EXPECT_TRUE(same_bits(apart.y, together.y));
  EXPECT_TRUE(same_bits(apart.sum, together.residual));
}

// Statistics belong to what was stored, which backward reads: a bf16 residual rounds the sum.
TEST(Norm, StatisticsAreThoseOfTheStoredSum) {
  Case c{1, 64, DType::bf16, DType::bf16, {}};
  Call run(c, 8);
  set_values(run.residual, Values(64, 256.0));
  set_values(run.branch, Values(64, 0.9));  // the sum 256.9 rounds to 256 (spacing 2)
  run.forward_added();
  EXPECT_EQ(to_doubles(run.sum)[0], 256);
  EXPECT_FLOAT_EQ(float(to_doubles(run.inverse)[0]), 1 / 256.f);
}

TEST(Norm, EpsilonIsInsideTheRoot) {  // CASES R06
  for (DType dtype : {DType::f32, DType::bf16}) {
    Case c{1, 8, dtype, dtype, {NormKind::rms, 0x1p-20f, false}};
    Call run(c, 9);
    set_values(run.residual, Values(8, 0x1p-10));
    set_values(run.weight, Values(8, 1.0));
    run.forward();
    for (double y : to_doubles(run.y)) EXPECT_NEAR(y, 0.70711, dtype == DType::f32 ? 1e-5 : 2e-3);
  }
}

TEST(Norm, ZeroCenteredWeightsAddInFp32) {
  Case c{1, 8, DType::f32, DType::f32, {NormKind::rms, 0, true}};
  Call run(c, 10);
  set_values(run.residual, Values(8, 5.0));
  set_values(run.weight, Values(8, double(float(bf16(0.003f)))));
  run.forward();
  EXPECT_NEAR(to_doubles(run.y)[3], 1.003f, 1e-5);
}

TEST(Norm, ZeroRowsGiveZeroAndFiniteGradients) {
  for (NormKind kind : {NormKind::rms, NormKind::layer}) {
    Case c{2, 16, DType::f32, DType::f32, {kind, 1e-6f, false}};
    Call run(c, 11);
    set_values(run.residual, Values(32, 0.0));
    run.forward();
    run.backward(run.residual, false);
    EXPECT_EQ(to_doubles(run.y), Values(32, 0.0));
    for (double d : to_doubles(run.dx)) EXPECT_TRUE(std::isfinite(d));
  }
}

// A row far from 0: the mean must go before the squares are taken.
TEST(Norm, LayerNormOfALargeMean) {
  Case c{3, 100, DType::f32, DType::f32, {NormKind::layer, 1e-6f, false}};
  Call run(c, 12);
  fill_random(run.residual, 13, 1, 1000);
  run.forward();
  EXPECT_TRUE(near_by_norm(run.y, reference::norm_forward(run.norm, to_doubles(run.residual)), 1e-4));
}

TEST(Norm, SameBitsInEveryRun) {
  Case c{700, 96, DType::f32, DType::bf16, {NormKind::layer, 1e-6f, false}, true};
  Call first(c, 14), second(c, 14);
  for (Call* run : {&first, &second}) {
    run->forward();
    run->backward(run->residual, true);
  }
  EXPECT_TRUE(same_bits(first.d_weight, second.d_weight));
  EXPECT_TRUE(same_bits(first.d_bias, second.d_bias));
  EXPECT_TRUE(same_bits(first.dx, second.dx));
}

// Ranks of a tensor group sum these for themselves, and may have other thread counts.
TEST(Norm, GradientsOfWeightsAreTheSameBitsOnAnyNumberOfThreads) {
  const Case c{1000, 72, DType::f32, DType::f32, {.kind = NormKind::layer}, true};
  Call first(c, 14), second(c, 14);
  const int threads = omp_get_max_threads();
  for (Call* run : {&first, &second}) {
    omp_set_num_threads(run == &first ? 1 : 3);
    run->forward();
    run->backward(run->residual, true);
  }
  omp_set_num_threads(threads);
  EXPECT_TRUE(same_bits(first.d_weight, second.d_weight));
  EXPECT_TRUE(same_bits(first.d_bias, second.d_bias));
  EXPECT_TRUE(same_bits(first.dx, second.dx));
}

TEST(Norm, TolerancesRefusePlantedMistakes) {
  Case c{40, 48, DType::f32, DType::bf16, {}};
  Call run(c, 15);
  run.forward();
  Values x = to_doubles(run.residual), y = reference::norm_forward(run.norm, x);
  reference::Norm layer = run.norm, centered = run.norm;
  layer.layer = true;
  centered.zero_centered = true;
  EXPECT_TRUE(near_by_norm(run.y, y, kOneOpBf16));
  EXPECT_TRUE(fails(near_by_norm(run.y, reference::norm_forward(layer, x), kOneOpBf16)));
  EXPECT_TRUE(fails(near_by_norm(run.y, reference::norm_forward(centered, x), kOneOpBf16)));
  EXPECT_TRUE(fails(near_by_norm(shifted(to_doubles(run.y)), y, kOneOpBf16)));
}

TEST(NormReference, GradientsAreFiniteDifferences) {
  for (bool layer : {false, true})
    for (bool zero_centered : {false, true}) {
      reference::Norm norm{layer, 1e-2, zero_centered, random_values(7, 1), layer ? random_values(7, 2) : Values{}};
      Values x = random_values(21, 3), dy = random_values(21, 4);
      auto gradients = reference::norm_backward(norm, dy, x);
      auto by_x = [&](const Values& at) { return dot(dy, reference::norm_forward(norm, at)); };
      EXPECT_TRUE(near_by_norm(gradients.dx, finite_differences(x, by_x), 1e-8));
      auto by = [&](Values reference::Norm::*member) {
        return finite_differences(norm.*member, [&](const Values& at) {
          reference::Norm other = norm;
          other.*member = at;
          return dot(dy, reference::norm_forward(other, x));
        });
      };
      EXPECT_TRUE(near_by_norm(gradients.d_weight, by(&reference::Norm::weight), 1e-8));
      EXPECT_TRUE(near_by_norm(gradients.d_bias, by(&reference::Norm::bias), 1e-8));
    }
}

TEST(Norm, RefusesWhatDoesNotFit) {
  Case c{3, 8, DType::f32, DType::f32, {}};
  Call run(c, 16);
  auto message = [&](const ops::NormWeights& weights) {
    try {
      ops::norm_forward({.y = run.y, .statistics = run.statistics(), .x = run.residual, .weights = weights});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  DeviceTensor wide({9}, DType::f32), bias({8}, DType::f32);
  EXPECT_THAT(message({wide, {}}), ::testing::HasSubstr("the weight must be fp32 [8], not fp32 [9]"));
  EXPECT_THAT(message({run.weight, bias}), ::testing::HasSubstr("an rms norm has no bias"));
  EXPECT_EQ(message({run.weight, {}}), "accepted");
  EXPECT_THROW(ops::norm_forward({run.y, {}, run.statistics(), run.residual, run.branch, run.weights()}), Error);
  EXPECT_THROW(ops::norm_forward({run.y, run.sum, run.statistics(), run.residual, {}, run.weights()}), Error);
}

}  // namespace
}  // namespace keel
