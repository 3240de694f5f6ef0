#include "framework/train/spike_score.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keel::train {
namespace {

void add(SpikeScoreHook& hook, double loss, double norm) {
  StepReport report;
  report.loss = loss;
  report.gradient_norm = norm;
  hook.after_step(report, {}, {});
}

// Alternating values have mean 3 and deviation 0.01.
void calm(SpikeScoreHook& hook, int steps) {
  for (int i = 0; i < steps; ++i) add(hook, i % 2 ? 3.01 : 2.99, 1 + 0.1 * (i % 2));
}

TEST(SpikeScore, CountsTheShareOfFarValues) {
  SpikeScoreHook hook;
  calm(hook, 1000);
  add(hook, 3.08, 1);  // 8 deviations
  add(hook, 2.9, 1);   // low ones count, too
  calm(hook, 998);
  EXPECT_DOUBLE_EQ(hook.scores()["loss_7_of_1000"].get<double>(), 2.0 / 2000);
  EXPECT_DOUBLE_EQ(hook.scores()["loss_6_of_128"].get<double>(), 2.0 / 2000);
  EXPECT_EQ(hook.scores()["gradient_norm_7_of_1000"], 0.0);
  EXPECT_EQ(hook.scores()["values"], 2000);
  EXPECT_NE(hook.text().find("loss 0.10%"), std::string::npos) << hook.text();
}

TEST(SpikeScore, AWindowMustBeFullAndAShortOneSeesMore) {
  SpikeScoreHook hook;
  calm(hook, 500);
  add(hook, 4, 1);
  EXPECT_EQ(hook.scores()["loss_7_of_1000"], 0.0);
  EXPECT_GT(hook.scores()["loss_6_of_128"], 0.0);
}

TEST(SpikeScore, ValuesThatAreNotFiniteAreSpikesAndNoPartOfAMean) {
  SpikeScoreHook hook;
  calm(hook, 1000);
  add(hook, NAN, INFINITY);
  add(hook, 3.08, 1);
  EXPECT_DOUBLE_EQ(hook.scores()["loss_7_of_1000"].get<double>(), 2.0 / 1002);
  EXPECT_DOUBLE_EQ(hook.scores()["gradient_norm_7_of_1000"].get<double>(), 1.0 / 1002);
}

TEST(SpikeScore, GoesOnAfterARestart) {
  SpikeScoreHook hook, restored;
  calm(hook, 1100);
  add(hook, 9, 1);
  restored.restore(nlohmann::json::parse(hook.state().dump()));
  for (SpikeScoreHook* one : {&hook, &restored}) {
    add(*one, 3.2, 1);
    calm(*one, 40);
  }
  EXPECT_EQ(hook.scores(), restored.scores());
}

}  // namespace
}  // namespace keel::train
