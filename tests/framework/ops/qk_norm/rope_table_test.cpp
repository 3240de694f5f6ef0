#include "framework/ops/qk_norm/rope_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/support/compare.h"

namespace keel {
namespace {

using namespace testing;
using ops::RopeScaling;

DeviceTensor table_of(int64_t positions, int64_t rotated, double theta, const RopeScaling& scaling = {}) {
  DeviceTensor table({positions, rotated}, DType::f32);
  ops::rope_table(table, theta, scaling);
  return table;
}

// The frequency of each pair, read back from position 1 (all lie below pi).
Values frequencies(const DeviceTensor& table) {
  int64_t half = table.tensor.size(1) / 2;
  const OnHost host(table.tensor);
  const float* row = host.as<float>() + 2 * half;
  Values result;
  for (int64_t i = 0; i < half; ++i) result.push_back(std::atan2(double(row[half + i]), double(row[i])));
  return result;
}

double largest_error(int64_t positions, int64_t rotated, double theta) {
  DeviceTensor table = table_of(positions, rotated, theta);
  const OnHost host(table.tensor);
  double worst = 0;
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < rotated / 2; ++i) {
      double angle = double(p) / std::pow(theta, 2.0 * double(i) / double(rotated));
      const float* row = host.as<float>() + p * rotated;
      worst = std::max(worst, std::abs(double(row[i]) - std::cos(angle)));
      worst = std::max(worst, std::abs(double(row[rotated / 2 + i]) - std::sin(angle)));
    }
  return worst;
}

TEST(RopeTable, EqualsDoubleFarOut) {  // CASES R19
  EXPECT_LT(largest_error(32768, 32, 1e4), 1e-7);
  EXPECT_LT(largest_error(131072, 16, 5e5), 1e-7);
}

// bf16 positions would make 256 of 257, and 15936 of 15962 (cos -0.26795).
TEST(RopeTable, PositionsAreNotRounded) {  // CASES R19
  DeviceTensor table = table_of(16384, 128, 1e4);
  const OnHost host(table.tensor);
  const float* at = host.as<float>();
  EXPECT_GT(std::abs(at[256 * 128] - at[257 * 128]), 0.1);
  // The first pair turns by one radian per position, whatever theta.
  EXPECT_NEAR(at[15962 * 128], -0.90802, 1e-5);
  EXPECT_NEAR(at[15936 * 128], -0.26795, 1e-5);
}

TEST(RopeTable, CosThenSin) {
  DeviceTensor table = table_of(3, 4, 100);
  Values want = {1,           1,
                 0,           0,  //
                 std::cos(1), std::cos(.1),
                 std::sin(1), std::sin(.1),  //
                 std::cos(2), std::cos(.2),
                 std::sin(2), std::sin(.2)};
  EXPECT_TRUE(near_by_norm(table, want, 1e-7));
}

TEST(RopeTable, LinearDividesEveryFrequency) {
  RopeScaling scaling{.kind = RopeScaling::Kind::linear, .factor = 8};
  Values plain = frequencies(table_of(2, 64, 1e6)), scaled = frequencies(table_of(2, 64, 1e6, scaling));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], plain[i] / 8, 1e-6 * plain[i]);
}

// Llama 3.1 8B: theta 5e5, d 128, factor 8, low 1, high 4, 8192 positions. Waves shorter than 8192/4 stay, longer than
// 8192 are divided by 8; between, the published formula.
TEST(RopeTable, Llama3) {
  RopeScaling scaling{.kind = RopeScaling::Kind::llama3, .factor = 8};
  Values plain = frequencies(table_of(2, 128, 5e5)), scaled = frequencies(table_of(2, 128, 5e5, scaling));
  int between = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    double wave = 2 * std::numbers::pi / plain[i], want = plain[i];
    if (wave > 8192) want = plain[i] / 8;
    if (wave >= 2048 && wave <= 8192) {
      double smooth = (8192 / wave - 1) / (4 - 1);
      want = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
      ++between;
    }
    EXPECT_NEAR(scaled[i], want, 2e-6 * want) << i;
  }
  EXPECT_GT(between, 3);
}

// YaRN with theta 1e4, d 128, 4096 original positions, factor 16: pairs below 20 stay, from 46 on are divided by 16
// (64 ln(4096/(32*2 pi))/ln(1e4) = 20.9, floor; 64 ln(4096/(2 pi))/ln(1e4) = 45.03, ceiling).
TEST(RopeTable, Yarn) {
  RopeScaling scaling{.kind = RopeScaling::Kind::yarn, .factor = 16, .original_positions = 4096};
  DeviceTensor table = table_of(2, 128, 1e4, scaling);
  Values plain = frequencies(table_of(2, 128, 1e4)), scaled = frequencies(table);
  for (size_t i = 0; i < plain.size(); ++i) {
    double stretched = std::clamp((double(i) - 20) / (46 - 20), 0.0, 1.0);
    EXPECT_NEAR(scaled[i], plain[i] / 16 * stretched + plain[i] * (1 - stretched), 2e-6 * plain[i]) << i;
  }
  EXPECT_NEAR(to_doubles(table)[0], 0.1 * std::log(16) + 1, 1e-6);
  scaling.attention_factor = 1.5;
  EXPECT_NEAR(to_doubles(table_of(2, 128, 1e4, scaling))[0], 1.5, 1e-6);
  scaling = {.kind = RopeScaling::Kind::yarn, .factor = 1, .original_positions = 4096};
  EXPECT_TRUE(same_bits(table_of(50, 128, 1e4, scaling), table_of(50, 128, 1e4)));
}

TEST(RopeTable, RefusesWhatMakesNoTable) {
  DeviceTensor odd({4, 7}, DType::f32), even({4, 8}, DType::f32);
  EXPECT_THROW(ops::rope_table(odd, 1e4), Error);
  EXPECT_THROW(ops::rope_table(even, 0.5), Error);
  RopeScaling flat{.kind = RopeScaling::Kind::llama3, .factor = 8, .low_frequency_factor = 4};
  EXPECT_THROW(ops::rope_table(even, 1e4, flat), Error);
}

}  // namespace
}  // namespace keel
