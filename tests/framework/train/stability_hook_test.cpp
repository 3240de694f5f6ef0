#include "framework/train/stability_hook.h"

#include <gmock/gmock.h>

#include <cmath>

namespace keel::train {
namespace {

StepReport step(double loss, double norm) {
  StepReport report;
  report.loss = loss;
  report.gradient_norm = norm;
  return report;
}

// What the loop does with one step. The limits shut the gate exactly where the hook then says why.
Action walk(StabilityHook& hook, const StepReport& report) {
  StepLimits limits;
  hook.limit(limits);
  const Verdict verdict = hook.judge(report);
  const bool updated = std::isfinite(report.loss) && std::isfinite(report.gradient_norm) &&
                       report.loss <= limits.loss && report.gradient_norm <= limits.gradient_norm;
  EXPECT_EQ(updated, verdict.action == Action::proceed) << verdict.reason;
  hook.after_step(report, verdict, {});
  return verdict.action;
}

TEST(StabilityHook, SkipsThenStops) {  // CASES R25
  StabilityHook hook({.max_skips = 3, .spikes = true, .spike = {}});
  EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(walk(hook, step(std::nan(""), 1)), Action::skip);
  const Verdict last = hook.judge(step(3, INFINITY));
  EXPECT_EQ(last.action, Action::stop_unstable);
  EXPECT_THAT(last.reason, ::testing::HasSubstr("stability.max_skips"));
}

TEST(StabilityHook, AGoodStepForgivesTheSkips) {
  StabilityHook hook({.max_skips = 1, .spikes = true, .spike = {}});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(walk(hook, step(INFINITY, 1)), Action::skip);
    EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  }
}

TEST(StabilityHook, SpikesOfLossAndOfGradientNormAreSkipped) {
  StabilityHook hook({.max_skips = 9,
                      .spikes = true,
                      .spike = {.window = 64, .min_history = 32, .sigmas = 6, .deviation_floor = 1e-3}});
  for (int i = 0; i < 40; ++i) EXPECT_EQ(walk(hook, step(3 + 0.01 * (i % 3), 1 + 0.01 * (i % 2))), Action::proceed);
  EXPECT_EQ(walk(hook, step(9, 1)), Action::skip);
  EXPECT_EQ(walk(hook, step(3, 50)), Action::skip);
  EXPECT_EQ(walk(hook, step(3, 1.5)), Action::proceed);  // many deviations, but no leap of a gradient
  EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);

  StabilityHook restored({.max_skips = 9,
                          .spikes = true,
                          .spike = {.window = 64, .min_history = 32, .sigmas = 6, .deviation_floor = 1e-3}});
  restored.restore(nlohmann::json::parse(hook.state().dump()));
  EXPECT_EQ(walk(restored, step(9, 1)), Action::skip);
}

}  // namespace
}  // namespace keel::train
