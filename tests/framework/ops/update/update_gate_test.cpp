#include "framework/ops/update/update_gate.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

constexpr double kNone = INFINITY;

struct Step {
  std::vector<double> sums = {60, 3, 20, 20};  // loss, z-loss, counted, finite: loss 3, z-loss 0.15
  double squares = 4;                          // norm 2
  std::vector<float> logits = {1, 7, -3, 5};
  std::vector<double> limits = {kNone, kNone, kNone};
  double clip_norm = 0;
  int64_t copies = 1;
};

struct Decision {
  std::vector<double> values;
  float scale, made;
};

Decision decide(const Step& step) {
  const DeviceTensor sums = device_tensor(step.sums), limits = device_tensor(step.limits);
  const DeviceTensor squares = device_tensor(std::vector<double>{step.squares}), logits = device_tensor(step.logits);
  const DeviceTensor gate({2}, DType::f32), values({4}, DType::f64);
  update_gate(gate, values, {sums, squares, logits, limits, step.copies}, step.clip_norm);
  const std::vector<float> decided = host_values(gate);
  return {host_values<double>(values), decided[0], decided[1]};
}

TEST(UpdateGate, MeansNormAndLargest) {
  const Decision open = decide({});
  EXPECT_EQ(open.values, (std::vector<double>{3, 3 / 20.0, 2, 7}));
  EXPECT_EQ(open.made, 1);
  EXPECT_EQ(open.scale, 1);
  // Four ranks of a tensor group bring the same sums.
  EXPECT_EQ(decide({.sums = {240, 12, 80, 80}, .copies = 4}).values, open.values);
  // A batch without a counted token changes nothing and divides by nothing.
  const Decision nothing = decide({.sums = {0, 0, 0, 0}, .squares = 0});
  EXPECT_EQ(nothing.values, (std::vector<double>{0, 0, 0, 7}));
  EXPECT_EQ(nothing.made, 0);
}

TEST(UpdateGate, ClipsToTheNorm) {
  EXPECT_EQ(decide({.clip_norm = 0.5}).scale, 0.25f);
  EXPECT_EQ(decide({.clip_norm = 2}).scale, 1);
  EXPECT_EQ(decide({.clip_norm = 3}).scale, 1);
}

TEST(UpdateGate, IsShutAboveALimitAndOpenAtIt) {
  EXPECT_EQ(decide({.limits = {3, 2, 7}}).made, 1);
  EXPECT_EQ(decide({.limits = {std::nextafter(3, 0), kNone, kNone}}).made, 0);
  EXPECT_EQ(decide({.limits = {kNone, std::nextafter(2, 0), kNone}}).made, 0);
  EXPECT_EQ(decide({.limits = {kNone, kNone, std::nextafter(7, 0)}}).made, 0);
}

TEST(UpdateGate, IsShutWhereAValueIsNotFinite) {
  EXPECT_EQ(decide({.sums = {NAN, 0, 20, 20}}).made, 0);
  EXPECT_EQ(decide({.sums = {INFINITY, 0, 20, 20}}).made, 0);
  EXPECT_EQ(decide({.squares = NAN}).made, 0);
  EXPECT_EQ(decide({.squares = INFINITY}).made, 0);
  // One token's loss was not finite, and left out of the sum.
  const Decision one = decide({.sums = {60, 3, 20, 19}});
  EXPECT_EQ(one.made, 0);
  EXPECT_TRUE(std::isnan(one.values[0]));
}

// Beside a loss that is finite, since a soft-cap or one-hot attention hides it.
TEST(UpdateGate, IsShutWhereALogitIsInfinite) {
  const Decision shut = decide({.logits = {1, INFINITY, 3}});
  EXPECT_EQ(shut.made, 0);
  EXPECT_EQ(shut.values[3], INFINITY);
}

// AdamW squares the scaled gradient in fp32, and a second moment that is infinite would stay so.
TEST(UpdateGate, IsShutWhereAScaledGradientHasNoSquareInFp32) {
  const double most = std::numeric_limits<float>::max();
  EXPECT_EQ(decide({.squares = 0.99 * most}).made, 1);
  const Decision shut = decide({.squares = 1.01 * most});
  EXPECT_EQ(shut.made, 0);
  EXPECT_EQ(shut.values[2], INFINITY);
  const Decision clipped = decide({.squares = 1.01 * most, .clip_norm = 1});
  EXPECT_EQ(clipped.made, 1);
  EXPECT_EQ(clipped.values[2], std::sqrt(1.01 * most));
}

TEST(UpdateGate, NanIsTheLargestLogitWhereverItStands) {
  for (size_t at : {0, 1, 31, 32, 99}) {
    Step step{.logits = std::vector<float>(100, 2.f)};
    step.logits[at] = NAN;
    const Decision shut = decide(step);
    EXPECT_TRUE(std::isnan(shut.values[3])) << at;
    EXPECT_EQ(shut.made, 0) << at;
    step.logits[at] = 50;
    EXPECT_EQ(decide(step).values[3], 50) << at;
  }
}

TEST(UpdateGate, ErrorsNameBothSizes) {
  const DeviceTensor two({2}, DType::f32), four({4}, DType::f64), one({1}, DType::f64), three({3}, DType::f64);
  EXPECT_THAT(
      [&] {
        update_gate(two, four, {three, one, two, three}, 0);
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("sums is fp64 [3], must be fp64 [4]")));
}

}  // namespace
}  // namespace keel::ops
