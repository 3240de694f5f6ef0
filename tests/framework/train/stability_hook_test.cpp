#include "framework/train/stability_hook.h"

#include <gmock/gmock.h>

#include <cmath>

namespace keel::train {
namespace {

StepReport step(double loss, double norm) {
  StepReport report;
  report.loss = loss;
  report.gradient_norm = norm;
  report.counted_tokens = 8;
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
  if (updated) hook.judge_update(report);
  return verdict.action;
}

constexpr config::SpikeConfig kSpike = {.window = 64, .min_history = 32, .sigmas = 6, .deviation_floor = 1e-3};

config::StabilityConfig ladder(int64_t skips, int64_t lowerings = 0) {
  return {.max_skips = skips, .spike = kSpike, .lower_lr = {.times = lowerings}};
}

TEST(StabilityHook, SkipsThenStops) {  // CASES R25
  StabilityHook hook(ladder(3));
  EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(walk(hook, step(std::nan(""), 1)), Action::skip);
  const Verdict last = hook.judge(step(3, INFINITY));
  EXPECT_EQ(last.action, Action::stop_unstable);
  EXPECT_THAT(last.reason, ::testing::HasSubstr("; stability.max_skips is used up, no rollback or fallback is left: "));
}

TEST(StabilityHook, AGoodStepForgivesTheSkips) {
  StabilityHook hook(ladder(1));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(walk(hook, step(INFINITY, 1)), Action::skip);
    EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  }
}

TEST(StabilityHook, SpikesOfLossAndOfGradientNormAreSkipped) {
  StabilityHook hook(ladder(9));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(walk(hook, step(3 + 0.01 * (i % 3), 1 + 0.01 * (i % 2))), Action::proceed);
  EXPECT_EQ(walk(hook, step(9, 1)), Action::skip);
  EXPECT_EQ(walk(hook, step(3, 50)), Action::skip);
  EXPECT_EQ(walk(hook, step(3, 1.5)), Action::proceed);  // many deviations, but no leap of a gradient
  EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);

  StabilityHook restored(ladder(9));
  restored.restore(nlohmann::json::parse(hook.state().dump()));
  EXPECT_EQ(walk(restored, step(9, 1)), Action::skip);
}

// CASES R22: what was skipped enters no mean, or a leap would hide the next one.
TEST(StabilityHook, SkippedValuesAreNoHistory) {
  std::vector<io::Json> skips;
  StabilityHook hook(ladder(9), [&](const std::string& kind, const io::Json& fields) {
    if (kind == "skip") skips.push_back(fields);
  });
  int64_t number = 0;
  auto next = [&](double loss) {
    StepReport report = step(loss, 1);
    report.step = ++number;
    return walk(hook, report);
  };
  for (int i = 0; i < 40; ++i) EXPECT_EQ(next(10 + 0.01 * (i % 3 - 1)), Action::proceed);
  const nlohmann::json before = hook.state()["signals"];
  EXPECT_EQ(next(std::nan("")), Action::skip);
  EXPECT_EQ(next(100), Action::skip);
  EXPECT_EQ(next(30), Action::skip);  // with 100 in the mean and deviation it would pass
  EXPECT_EQ(hook.state()["signals"], before);
  EXPECT_EQ(next(10), Action::proceed);
  ASSERT_EQ(skips.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(skips[i]["step"], 41 + i);
}

// Each rung once: what is noted, the learning rate meanwhile, and where the trouble is said to lie.
TEST(StabilityHook, ClimbsTheLadder) {
  std::vector<std::string> kinds;
  std::vector<io::Json> events;
  config::StabilityConfig options = ladder(2);
  options.lower_lr = {.factor = 0.5, .steps = 4, .times = 2};
  const auto note = [&](const std::string& kind, const io::Json& fields) {
    kinds.push_back(kind);
    events.push_back(fields);
  };
  StabilityHook hook(options, note, [](int64_t first_step) { return first_step == 11; });
  auto at = [](int64_t number, double loss) {
    StepReport report = step(loss, 1);
    report.step = number;
    report.first_sample = number * 8;
    report.end_sample = number * 8 + 8;
    return report;
  };
  for (int64_t i = 1; i <= 10; ++i) EXPECT_EQ(walk(hook, at(i, 3)), Action::proceed);
  std::vector<Action> actions;
  std::vector<double> factors;
  for (int64_t i = 11; i <= 19; ++i) {
    factors.push_back(hook.lr_factor(i));
    actions.push_back(walk(hook, at(i, NAN)));
  }
  using enum Action;
  EXPECT_THAT(actions, ::testing::ElementsAre(skip, skip, lower_lr, skip, skip, lower_lr, skip, skip, roll_back));
  EXPECT_THAT(factors, ::testing::ElementsAre(1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25));
  EXPECT_EQ(hook.lr_factor(20), 0.25);
  EXPECT_EQ(hook.lr_factor(21), 1);
  EXPECT_EQ(kinds.back(), "roll_back");
  EXPECT_THAT(events[2]["history"].get<std::string>(), ::testing::StartsWith("2 skipped steps in a row"));
  EXPECT_EQ(kinds.size(), actions.size());
  EXPECT_EQ(events[1]["step"], 12);
  EXPECT_EQ(events[1]["signal"], "loss");
  EXPECT_EQ(events[1]["first_sample"], 96);
  EXPECT_EQ(hook.troubled().first_step, 11);
  EXPECT_EQ(hook.troubled().last_step, 19);
  EXPECT_EQ(hook.troubled().first_sample, 88);
  EXPECT_EQ(hook.troubled().end_sample, 160);
}

// A gradient norm that stays high while the loss is calm is how the run is: skipped at first, then taken, then the
// mean.
TEST(StabilityHook, AHighGradientNormAloneNeverClimbs) {
  StabilityHook hook(ladder(2, 2), {}, [](int64_t) { return true; });
  for (int i = 0; i < 40; ++i) EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  std::vector<Action> actions;
  for (int i = 0; i < 100; ++i) actions.push_back(walk(hook, step(3, 60)));
  EXPECT_EQ(std::count(actions.begin(), actions.end(), Action::skip), 2);
  EXPECT_EQ(std::count(actions.begin(), actions.end(), Action::proceed), 98);
  EXPECT_EQ(walk(hook, step(3, INFINITY)), Action::skip);
}

// Skips of gradient spikes leave those of worse trouble untouched, also where a restart lies between.
TEST(StabilityHook, GradientSpikesUseUpNoSkipOfHeavyTrouble) {
  StabilityHook hook(ladder(3, 1)), restored(ladder(3, 1));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(walk(hook, step(3, 1)), Action::proceed);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(walk(hook, step(3, 60)), Action::skip);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(walk(hook, step(NAN, 1)), Action::skip);
  restored.restore(nlohmann::json::parse(hook.state().dump()));
  EXPECT_EQ(walk(restored, step(NAN, 1)), Action::skip);
  EXPECT_EQ(walk(restored, step(NAN, 1)), Action::lower_lr);
  EXPECT_EQ(walk(restored, step(3, 60)), Action::proceed) << "its three skips are used up";
  nlohmann::json older = hook.state();
  older["ladder"].erase("light_skipped_in_a_row");
  EXPECT_NO_THROW(restored.restore(older));
}

// A restored ladder goes on counting where it was.
TEST(StabilityHook, CountsAcrossARestart) {
  StabilityHook hook(ladder(2, 1));
  EXPECT_EQ(walk(hook, step(NAN, 1)), Action::skip);
  EXPECT_EQ(walk(hook, step(NAN, 1)), Action::skip);
  StabilityHook restored(ladder(2, 1));
  restored.restore(nlohmann::json::parse(hook.state().dump()));
  EXPECT_EQ(restored.troubled().reason, hook.troubled().reason);
  EXPECT_NE(restored.troubled().reason, "");
  EXPECT_EQ(walk(restored, step(NAN, 1)), Action::lower_lr);
}

// Every other step in trouble: never three in a row, but not for ever either.
TEST(StabilityHook, SkipsOfAThousandAreBounded) {
  config::StabilityConfig options = ladder(3);
  options.max_skips_of_1000 = 20;
  StabilityHook hook(options);
  int64_t number = 0;
  auto next = [&](double loss) {
    StepReport report = step(loss, 1);
    report.step = ++number;
    return walk(hook, report);
  };
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(next(NAN), Action::skip);
    EXPECT_EQ(next(3), Action::proceed);
  }
  EXPECT_EQ(next(NAN), Action::stop_unstable);
}

TEST(StabilityHook, CalmStepsForgiveTheLowerings) {
  config::StabilityConfig options = ladder(0, 1);
  options.calm_steps = 5;
  StabilityHook hook(options);
  auto at = [](int64_t number, double loss) {
    StepReport report = step(loss, 1);
    report.step = number;
    return report;
  };
  EXPECT_EQ(walk(hook, at(1, NAN)), Action::lower_lr);
  for (int64_t i = 2; i <= 6; ++i) EXPECT_EQ(walk(hook, at(i, 3)), Action::proceed);
  EXPECT_EQ(walk(hook, at(7, NAN)), Action::lower_lr);
  EXPECT_EQ(walk(hook, at(8, 3)), Action::proceed);
  EXPECT_EQ(walk(hook, at(9, NAN)), Action::stop_unstable);
}

// What single heads do, and what an update did: seen where the loss says nothing.
class SignalsOfHeads : public ::testing::Test {
 protected:
  SignalsOfHeads()
      : signals({.spike = kSpike, .per_head = {.logit_factor = 4, .logit_floor = 30, .min_entropy = 1e-3}}) {
    for (int i = 0; i < 40; ++i) signals.accept(report());
  }
  static StepReport report() {
    StepReport report = step(3, 1);
    report.lr = 1e-3;
    report.update_norm = 2e-3;
    report.layers = report.heads = 2;
    report.largest_logit = {5, 12, 5, 5};
    report.telemetry = true;
    report.entropy = {2, 2, 2e-3f, 2};
    return report;
  }
  Signals signals;
};

TEST_F(SignalsOfHeads, OneLeapingLogitIsNamed) {
  StepReport leaping = report();
  leaping.largest_logit = {29, 47, 5, 5};  // below the floor, and below 4 times the mean
  EXPECT_FALSE(signals.above_limits(leaping));
  EXPECT_FALSE(signals.of_update(leaping));
  leaping.largest_logit = {5, 12, 5, 31};  // above its own limit, below that of the other head
  EXPECT_FALSE(signals.above_limits(leaping));
  const auto trouble = signals.of_update(leaping);
  ASSERT_TRUE(trouble);
  EXPECT_EQ(trouble->signal, "largest_logit");
  EXPECT_EQ(trouble->layer, 1);
  EXPECT_EQ(trouble->head, 1);
  EXPECT_FLOAT_EQ(float(trouble->threshold), 30);
  leaping.largest_logit = {5, 12, 5, 49};  // above all
  EXPECT_FLOAT_EQ(float(signals.limits().largest_logit), 48);
  EXPECT_TRUE(signals.above_limits(leaping));
}

// Beside a finite loss, since a soft-cap hides it; whether or not spikes are looked for.
TEST_F(SignalsOfHeads, ALogitThatIsNotFiniteIsTroubleAndNoHistory) {
  StepReport infinite = report();
  infinite.largest_logit[3] = INFINITY;
  for (const Signals& judge : {signals, Signals({.spike = {.enabled = false}})}) {
    const auto trouble = judge.above_limits(infinite);
    ASSERT_TRUE(trouble);
    EXPECT_EQ(trouble->grade, Grade::heavy);
    EXPECT_EQ(trouble->reason, "the largest logit inf of head 1 in layer 1 is not finite");
  }
  signals.accept(infinite);
  Signals restored(config::StabilityConfig{});
  restored.restore(nlohmann::json::parse(signals.state().dump()));
  EXPECT_EQ(restored.state()["mean_logit"], nlohmann::json({5, 12, 5, 5}));
}

TEST_F(SignalsOfHeads, AnUpdateIsJudgedAgainstItsLearningRate) {
  StepReport next = report();
  next.lr = 1e-2;
  next.update_norm = 2e-2;
  EXPECT_FALSE(signals.of_update(next));
  next.lr = 1e-3;
  const auto trouble = signals.of_update(next);
  ASSERT_TRUE(trouble);
  EXPECT_EQ(trouble->signal, "update_norm");
  EXPECT_DOUBLE_EQ(trouble->value, 20);
}

TEST_F(SignalsOfHeads, AFallenEntropyIsToldOnceAndSharpHeadsNever) {
  StepReport fallen = report();
  fallen.entropy = {2, 2, 0, 1e-5f};  // head 0 of layer 1 always was sharp
  const auto trouble = signals.of_update(fallen);
  ASSERT_TRUE(trouble);
  EXPECT_EQ(trouble->signal, "entropy");
  EXPECT_EQ(trouble->layer, 1);
  EXPECT_EQ(trouble->head, 1);
  EXPECT_FALSE(signals.of_update(fallen));
  for (int i = 0; i < 2; ++i) signals.accept(report());
  EXPECT_TRUE(signals.of_update(fallen)) << "it had recovered";
}

TEST_F(SignalsOfHeads, StateComesBack) {
  Signals restored({.spike = kSpike, .per_head = {.logit_factor = 4, .logit_floor = 30}});
  restored.restore(nlohmann::json::parse(signals.state().dump()));
  StepReport leaping = report();
  leaping.largest_logit[2] = 49;
  EXPECT_TRUE(restored.above_limits(leaping));
  leaping = report();
  leaping.gradient_norm = 90;
  EXPECT_TRUE(restored.above_limits(leaping));
}

// So that people find the text: a place in the order of samples says nothing to them.
TEST(StabilityHook, EventsNameTheSamplesOfTheirStep) {
  std::vector<io::Json> events;
  StabilityHook hook(ladder(3), [&](const std::string&, const io::Json& fields) { events.push_back(fields); });
  StepReport few = step(std::nan(""), 1);
  few.samples = {{.source = 1, .epoch = 2, .sample = 70}, {.source = 0, .epoch = 0, .sample = 5}};
  hook.judge(few);
  StepReport many = few;
  many.samples.resize(1000, {.source = 3, .epoch = 0, .sample = 9});
  hook.judge(many);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["samples"], io::Json::parse("[[1, 70], [0, 5]]"));
  EXPECT_EQ(events[1]["samples"].size(), 64u);
  EXPECT_EQ(events[1]["samples"][63], io::Json::parse("[3, 9]"));
}

// A step in trouble after its update: no skip would help, so the rate is lowered, and then the run goes back.
TEST(StabilityHook, TroubleAfterAnUpdateLowersTheRateThenRollsBack) {
  StabilityHook hook(ladder(3, 1), {}, [](int64_t) { return true; });
  auto at = [](int64_t number, double update_norm) {
    StepReport report = step(3, 1);
    report.step = number;
    report.lr = 1;
    report.update_norm = update_norm;
    return report;
  };
  for (int64_t i = 1; i <= 40; ++i) EXPECT_EQ(hook.judge_update(at(i, 2)).action, Action::proceed);
  EXPECT_EQ(hook.judge_update(at(41, 20)).action, Action::lower_lr);
  EXPECT_EQ(hook.lr_factor(42), 0.5);
  EXPECT_EQ(hook.judge_update(at(42, 20)).action, Action::roll_back);
  EXPECT_EQ(hook.troubled().first_step, 41);
}

}  // namespace
}  // namespace keel::train
