// What an ablation's numbers come to, on cells made by hand.
#include "framework/lab/comparison.h"

#include <gmock/gmock.h>

#include "framework/lab/findings.h"

namespace keel::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two arms, three rates, three seeds; `loss` says what each cell came to.
Ablation study(double (*loss)(bool rms, size_t x, size_t seed)) {
  Ablation ablation;
  ablation.plan = {.name = "study",
                   .baseline = "none",
                   .arms = {{"none", {}}, {"rms", {{"a", "1", "2"}}}},
                   .axes = {{"optimizer.lr", {"1e-3", "1e-2", "1e-1"}}},
                   .seeds = {4, 5, 6}};
  for (size_t seed = 0; seed < 3; ++seed)
    for (size_t x = 0; x < 3; ++x)
      for (bool rms : {false, true}) {
        const std::string arm = rms ? "rms" : "none";
        ablation.plan.cells.push_back(
            {arm + std::to_string(x), arm, {ablation.plan.axes[0].values[x]}, ablation.plan.seeds[seed], {}});
        CellResult result{.first_loss = 5, .valid_loss = loss(rms, x, seed), .largest_logit = rms ? 20.0 : 2e4};
        if (rms) result.bound_used = 0.5;
        if (!rms) result.lost = "the largest logit of step 3 is 2e4";
        ablation.results.push_back(result);
      }
  return ablation;
}

// none: 2, 3 and lost; rms: 2 everywhere, a little better at each seed.
double usual(bool rms, size_t x, size_t seed) {
  if (rms) return 2 - 0.1 * double(seed);
  return x == 2 ? std::nan("") : 2 + double(x);
}

TEST(Comparison, ALinePerArmWithTheBaselineFirst) {
  const Ablation ablation = study(usual);
  const Comparison comparison = compare(ablation);
  EXPECT_EQ(comparison.x_key, "optimizer.lr");
  EXPECT_THAT(comparison.x_numbers, ElementsAre(1e-3, 1e-2, 1e-1));
  ASSERT_EQ(comparison.lines.size(), 2u);
  EXPECT_EQ(comparison.lines[0].label, "none");
  EXPECT_EQ(comparison.lines[1].baseline, 0u);
  EXPECT_EQ(comparison.lines[1].results[2][1]->valid_loss, 1.9);
  EXPECT_EQ(counted_loss(*comparison.lines[0].results[2][0]), 5) << "not finite: the loss before training";
}

TEST(Comparison, SensitivityAndDifferencesPerSeed) {
  const Ablation ablation = study(usual);
  const Comparison comparison = compare(ablation);
  const Line &none = comparison.lines[0], &rms = comparison.lines[1];
  // (2 + 3 + 5) / 3 - 2.
  EXPECT_THAT(sensitivities(none),
              ElementsAre(::testing::DoubleNear(4.0 / 3, 1e-12), ::testing::DoubleNear(4.0 / 3, 1e-12),
                          ::testing::DoubleNear(4.0 / 3, 1e-12)));
  EXPECT_THAT(sensitivities(rms), ElementsAre(0, 0, 0));
  const Estimate best = difference(rms, none, best_losses);
  EXPECT_NEAR(best.mean, -0.1, 1e-12);
  EXPECT_NEAR(*best.half_width, 4.302652729911275 * 0.1 / std::sqrt(3), 1e-9);  // t(2), 97.5%
  EXPECT_FALSE(best.p);
}

TEST(Comparison, CellsThatAreMissingLeaveTheirSeedOut) {
  Ablation ablation = study(usual);
  ablation.results[1].reset();  // rms at 1e-3 of the first seed
  ablation.results[8].reset();  // none at 1e-2 of the second
  const Comparison comparison = compare(ablation);
  EXPECT_EQ(sensitivities(comparison.lines[0]).size(), 2u);
  EXPECT_EQ(sensitivities(comparison.lines[1]).size(), 2u);
  EXPECT_EQ(difference(comparison.lines[1], comparison.lines[0], sensitivities).count, 1u) << "only the third has both";
  EXPECT_EQ(losses_at(comparison.lines[1], 0).size(), 2u);
}

TEST(Comparison, OtherAxesMakeLinesOfTheirOwn) {
  Ablation ablation;
  ablation.plan = {.baseline = "a",
                   .arms = {{"a", {}}, {"b", {}}},
                   .axes = {{"data.sequence_length", {"64", "128"}}, {"optimizer.lr", {"1e-3", "1e-2"}}},
                   .seeds = {1}};
  for (const char* length : {"64", "128"})
    for (const char* lr : {"1e-3", "1e-2"})
      for (const char* arm : {"a", "b"}) {
        ablation.plan.cells.push_back({"", arm, {length, lr}, 1, {}});
        ablation.results.emplace_back(CellResult{});
      }
  const Comparison comparison = compare(ablation);
  ASSERT_EQ(comparison.lines.size(), 4u);
  EXPECT_EQ(comparison.lines[3].label, "b, sequence_length 128");
  EXPECT_EQ(comparison.lines[3].baseline, 2u) << "its baseline is at the same length";
  EXPECT_EQ(comparison.x.size(), 2u);
}

TEST(Comparison, NumbersOfAGridThatGrewAreSorted) {
  Ablation ablation = study(usual);
  ablation.plan.axes[0].values = {"1e-3", "1e-1", "1e-2"};
  const Comparison comparison = compare(ablation);
  EXPECT_THAT(comparison.x, ElementsAre("1e-3", "1e-2", "1e-1"));
  EXPECT_THAT(comparison.x_numbers, ElementsAre(1e-3, 1e-2, 1e-1));
  EXPECT_EQ(comparison.lines[0].results[1][0]->valid_loss, 3) << "that of 1e-2";
}

// What differs between points of the grid, and between times, is no cost of an arm.
TEST(Comparison, StepTimesAreComparedCellByCell) {
  Ablation ablation;
  ablation.plan = {.baseline = "a",
                   .arms = {{"a", {}}, {"b", {}}},
                   .axes = {{"data.sequence_length", {"64", "1024"}}},
                   .seeds = {1}};
  for (const auto& [length, seconds] : {std::pair("64", 1.0), {"1024", 10.0}})
    for (const char* arm : {"a", "b"}) {
      ablation.plan.cells.push_back({"", arm, {length}, 1, {}});
      ablation.results.emplace_back(CellResult{.seconds_per_step = seconds * (arm == std::string("a") ? 1 : 1.1)});
    }
  auto text = [&] {
    const Comparison comparison = compare(ablation);
    return text_of_ratios(step_time_ratios(comparison.lines[1], comparison.lines[0]));
  };
  EXPECT_EQ(text(), "1.100");
  ablation.results[3]->seconds_per_step = 22;
  EXPECT_EQ(text(), "1.650 (1.100 to 2.200), machine not quiet");
  // Where the fastest steps of both are known, they are compared.
  ablation.results[3]->quick_seconds_per_step = 10.9;
  EXPECT_EQ(text(), "1.650 (1.100 to 2.200), machine not quiet");
  ablation.results[2]->quick_seconds_per_step = 10;
  EXPECT_EQ(text(), "1.095 (1.090 to 1.100)");
  ablation.results[2].reset();
  EXPECT_EQ(text(), "1.100") << "a cell alone has no ratio";
}

TEST(Comparison, SensitivityIsToOneLogSpacedGridOfLearningRates) {
  Ablation ablation = study(usual);
  EXPECT_TRUE(compare(ablation).has_sensitivity);
  ablation.plan.axes[0].key = "data.sequence_length";
  EXPECT_FALSE(compare(ablation).has_sensitivity);
  EXPECT_THAT(findings(ablation).shown, Not(HasSubstr("sensitivity")));
  ablation = study(usual);
  ablation.plan.axes[0].values[0] = "8e-3";
  for (Cell& cell : ablation.plan.cells)
    if (cell.values[0] == "1e-3") cell.values[0] = "8e-3";
  EXPECT_FALSE(compare(ablation).has_sensitivity) << "0.008, 0.01, 0.1";
  EXPECT_THAT(findings(ablation).shown, Not(HasSubstr("sensitivity")));
}

TEST(Findings, CountFailuresApart) {
  Ablation ablation = study(usual);
  ablation.results[1].reset();
  ablation.results[3].reset();
  ablation.failures.assign(18, "");
  ablation.failures[3] = "no data";
  const Findings found = findings(ablation);
  EXPECT_THAT(found.not_shown, HasSubstr("1 cells failed; 1 cells have not ended"));
}

TEST(Findings, SayWhatTheNumbersSay) {
  const Findings found = findings(study(usual));
  EXPECT_THAT(found.shown, HasSubstr("Shown, in 18 of 18 cells with 3 seeds over optimizer.lr from 1e-3 to 1e-1: "));
  EXPECT_THAT(found.shown, HasSubstr("lowest learning-rate sensitivity 0.000 with rms (baseline none: 1.333)"));
  EXPECT_THAT(found.shown, HasSubstr("cells lost: 9 of 9 with none; the other arm lost none. Also: "));
  EXPECT_THAT(found.shown, HasSubstr("beyond the interval over seeds (2 comparisons, each at 95%): sensitivity rms "
                                     "-1.333"));
  EXPECT_THAT(found.not_shown, HasSubstr("that rms differs from the baseline in its best loss: the interval holds 0"));
  Ablation ablation = study(usual);
  ablation.results[1]->outside_bound = 3;
  EXPECT_THAT(findings(ablation).shown, HasSubstr("rms was above its bound in 3 steps: a fault"));
}

TEST(Findings, ClaimADifferenceOnlyBeyondTheInterval) {
  const Findings found = findings(study([](bool rms, size_t x, size_t seed) {
    return 2 + double(x) + 0.01 * double(seed) - (rms ? 0.5 + 0.001 * double(seed) : 0);
  }));
  EXPECT_THAT(found.shown,
              HasSubstr("beyond the interval over seeds (2 comparisons, each at 95%): best loss rms -0.501 ± 0.002"));
  EXPECT_THAT(found.not_shown,
              HasSubstr("that rms differs from the baseline in its sensitivity: the interval holds 0"));
  EXPECT_THAT(found.not_shown, Not(HasSubstr("in its best loss")));
  Ablation one = study(usual);
  one.plan.seeds = {4};
  one.plan.cells.resize(6);
  one.results.resize(6);
  EXPECT_THAT(findings(one).not_shown, HasSubstr("with fewer than 3 seeds no interval can be given"));
  one.plan.arms[1].differences.push_back({"b", "1", "2"});
  EXPECT_THAT(findings(one).not_shown, HasSubstr("which of its 2 changed keys makes rms what it is"));
}

// By the seeds that are there, not those that are planned.
TEST(Findings, SayWhereSeedsAreMissing) {
  Ablation ablation = study(usual);
  ablation.plan.arms.push_back({"l2", {}});
  for (size_t i = 0; i < 18; i += 2) {  // as many cells more, in a third arm that has one seed
    Cell cell = ablation.plan.cells[i];
    cell.arm = "l2";
    ablation.plan.cells.push_back(cell);
    ablation.results.push_back(i < 6 ? ablation.results[i] : std::nullopt);
  }
  EXPECT_THAT(findings(ablation).not_shown,
              HasSubstr("how much of l2 against the baseline is chance: fewer than 3 of 3 seeds are complete"));
  Ablation without = ablation;
  for (size_t i = 18; i < 27; ++i) without.results[i].reset();
  EXPECT_THAT(findings(without).not_shown, Not(HasSubstr("chance"))) << "no cell, no difference";
  for (size_t i = 6; i < 18; ++i) ablation.results[i].reset();
  EXPECT_THAT(findings(ablation).not_shown, HasSubstr("with fewer than 3 of 3 seeds complete no interval"));
  for (size_t i = 18; i < 27; ++i) ablation.results[i].reset();
  const Findings found = findings(ablation);
  EXPECT_THAT(found.not_shown, HasSubstr("anything about l2, of which no cell has ended"));
  EXPECT_THAT(found.shown, Not(HasSubstr("l2")));
}

// One that has nothing to do is no other arm.
TEST(Findings, NameArmsWhoseKeysNeverActed) {
  Ablation ablation = study(usual);
  ablation.plan.arms[1].differences.push_back({"b", "1", "2"});
  for (size_t i = 0; i < 18; ++i) ablation.results[i]->valid_loss = 2;
  EXPECT_THAT(findings(ablation).shown, Not(HasSubstr("bit for bit"))) << "other logits";
  EXPECT_THAT(findings(ablation).not_shown, HasSubstr("makes rms what it is"));
  for (size_t i = 0; i < 18; ++i) ablation.results[i]->largest_logit = 20;
  EXPECT_THAT(findings(ablation).shown, HasSubstr("rms came to the same as none bit for bit"));
  EXPECT_THAT(findings(ablation).not_shown, Not(HasSubstr("makes rms what it is")));
  ablation.results[1]->last_logit = std::nextafter(0.0, 1.0);
  EXPECT_THAT(findings(ablation).shown, Not(HasSubstr("bit for bit")));
}

TEST(Findings, StayShortWithManyArms) {
  Ablation ablation = study(usual);
  for (int arm = 0; arm < 30; ++arm) {
    ablation.plan.arms.push_back({fmt::format("arm{}", arm), {{"a", "1", "2"}, {"b", "1", "2"}}});
    for (size_t i = 0; i < 18; i += 2) {
      Cell cell = ablation.plan.cells[i];
      cell.arm = ablation.plan.arms.back().name;
      ablation.plan.cells.push_back(cell);
      ablation.results.push_back(ablation.results[i]);
      ablation.results.back()->train_loss = arm + 1;
    }
  }
  const Findings found = findings(ablation);
  EXPECT_THAT(found.shown, HasSubstr("9 of 9 with arm1 and 28 more"));
  EXPECT_LT(found.shown.size() + found.not_shown.size(), 1500u);
}

}  // namespace
}  // namespace keel::lab
