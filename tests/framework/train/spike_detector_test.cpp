#include "framework/train/spike_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keel::train {
namespace {

SpikeDetector after_calm(double low, double high) {
  SpikeDetector detector({.window = 128, .min_history = 128, .sigmas = 6}, 1e-3);
  for (int i = 0; i < 128; ++i) detector.accept(i % 2 ? high : low);
  return detector;
}

TEST(SpikeDetector, ComparesWithTheMeanAndNotWithZero) {  // CASES R21
  const SpikeDetector detector = after_calm(9.99, 10.01);
  EXPECT_FALSE(detector.judge(10.02).spike);
  EXPECT_NEAR(detector.judge(10.02).sigmas, 2, 1e-6);
  EXPECT_TRUE(detector.judge(10.10).spike);
  EXPECT_NEAR(detector.judge(10.10).sigmas, 10, 1e-6);
  EXPECT_FALSE(detector.judge(5.0).spike);
}

TEST(SpikeDetector, AFlatHistoryHasAFloorOnItsDeviation) {
  const SpikeDetector detector = after_calm(10, 10);
  EXPECT_FALSE(detector.judge(10.0001).spike);
  EXPECT_TRUE(detector.judge(11).spike);
}

TEST(SpikeDetector, DecidesNothingWithoutHistory) {
  SpikeDetector detector({.window = 128, .min_history = 20, .sigmas = 6}, 1e-3);
  for (int i = 0; i < 19; ++i) {
    EXPECT_FALSE(detector.judge(1e6).spike);
    detector.accept(1);
  }
  detector.accept(1);
  EXPECT_TRUE(detector.judge(1e6).spike);
}

TEST(SpikeDetector, NonFiniteIsASpikeAndNeverEntersTheStatistics) {  // CASES R22
  SpikeDetector detector = after_calm(9.99, 10.01);
  const SpikeScore before = detector.judge(10);
  for (double value :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(detector.judge(value).spike);
    detector.accept(value);
  }
  EXPECT_TRUE(detector.judge(100).spike);
  const SpikeScore after = detector.judge(10);
  EXPECT_FALSE(after.spike);
  EXPECT_EQ(after.mean, before.mean);
  EXPECT_EQ(after.deviation, before.deviation);
}

TEST(SpikeDetector, RestoresItsHistory) {
  const SpikeDetector detector = after_calm(9.99, 10.01);
  SpikeDetector restored({.window = 128, .min_history = 128, .sigmas = 6}, 1e-3);
  restored.restore(detector.history());
  EXPECT_EQ(restored.judge(10.1).sigmas, detector.judge(10.1).sigmas);
}

}  // namespace
}  // namespace keel::train
