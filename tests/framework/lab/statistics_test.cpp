// Against SciPy and NumPy (tests/golden/make_statistics.py).
#include "framework/lab/statistics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/golden.h"

namespace keel::lab {
namespace {

using nlohmann::json;

json golden() {
  std::ifstream file(testing::golden_file("statistics.json"));
  return json::parse(file);
}

double number(const json& value) {
  if (value.is_number()) return value;
  return value == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> numbers(const json& values) {
  std::vector<double> out;
  for (const json& value : values) out.push_back(number(value));
  return out;
}

TEST(Statistics, StudentIntervals) {
  const json all = golden();
  ASSERT_EQ(all["estimates"].size(), 5u);
  for (const json& expected : all["estimates"]) {
    const Estimate e = estimate(numbers(expected["values"]));
    EXPECT_NEAR(e.mean, number(expected["mean"]), 1e-12);
    ASSERT_TRUE(e.half_width);
    EXPECT_NEAR(*e.half_width, number(expected["half_width"]), 1e-9 * *e.half_width);
  }
}

TEST(Statistics, PairedDifferences) {
  const json all = golden();
  ASSERT_EQ(all["paired"].size(), 2u);
  for (const json& expected : all["paired"]) {
    const Estimate e = paired_difference(numbers(expected["a"]), numbers(expected["b"]));
    EXPECT_NEAR(e.mean, number(expected["mean"]), 1e-12);
    EXPECT_NEAR(*e.half_width, number(expected["half_width"]), 1e-9 * *e.half_width);
    ASSERT_TRUE(e.p);
    EXPECT_NEAR(*e.p, number(expected["p"]), 1e-9);
  }
}

TEST(Statistics, FewSeedsSayLess) {
  const std::vector<double> a = {3, 2, 4, 5}, b = {1, 1, 2, 2};
  EXPECT_FALSE(estimate(std::span(a).first(2)).half_width);
  EXPECT_DOUBLE_EQ(estimate(std::span(a).first(2)).mean, 2.5);
  EXPECT_TRUE(estimate(std::span(a).first(3)).half_width);
  EXPECT_FALSE(paired_difference(a, b).p) << "four seeds";
  EXPECT_TRUE(paired_difference(a, b).half_width);
  EXPECT_EQ(estimate({}).count, 0u);
}

TEST(Statistics, LearningRateSensitivity) {
  const json all = golden();
  ASSERT_EQ(all["sensitivity"].size(), 3u);
  for (const json& expected : all["sensitivity"])
    EXPECT_NEAR(lr_sensitivity(numbers(expected["losses"]), number(expected["first_loss"])), number(expected["value"]),
                1e-12);
  // By hand: losses above l0 count as l0; (2 + 3 + 4) / 3 - 2.
  EXPECT_DOUBLE_EQ(lr_sensitivity(std::vector<double>{2, 3, 9}, 4), 1);
}

TEST(Statistics, LogSpacedGrids) {
  using Values = std::vector<double>;
  EXPECT_TRUE(log_spaced(Values{1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3}));
  EXPECT_TRUE(log_spaced(Values{5e-3, 1e-3, 1e-2, 2e-3})) << "in any order";
  EXPECT_FALSE(log_spaced(Values{3e-3, 3e-2, 1e-1}));
  EXPECT_FALSE(log_spaced(Values{0, 1e-3, 1e-2}));
  EXPECT_FALSE(log_spaced(Values{-1, 10}));
  EXPECT_FALSE(log_spaced(Values{1e-3}));
}

TEST(Statistics, SpikeScores) {
  const json all = golden();
  const std::vector<double> curve = numbers(all["curve"]);
  ASSERT_EQ(all["spikes"].size(), 3u);
  for (const json& expected : all["spikes"]) {
    const auto score = spike_score(curve, {number(expected["deviations"]), int64_t(number(expected["window"]))});
    EXPECT_GT(score.value(), 0);
    EXPECT_NEAR(*score, number(expected["score"]), 1e-12) << expected["deviations"];
  }
  EXPECT_FALSE(spike_score(std::vector<double>(128, 1.0), {})) << "nothing has 128 values before it";
  EXPECT_EQ(spike_score(std::vector<double>(129, 1.0), {}), 0);
}

TEST(Statistics, Medians) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace keel::lab
