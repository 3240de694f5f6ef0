// What an ablation's numbers come to, on cells made by hand.
#include "framework/lab/comparison.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "framework/lab/ablation_report.h"
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

TEST(Findings, CountFailuresAndRescuesApart) {
  Ablation ablation = study(usual);
  ablation.results[0]->rollbacks = 2;
  ablation.results[0]->fallbacks = 1;
  ablation.results[0]->given_up_logit = 3e3;
  ablation.results[1].reset();
  ablation.results[3].reset();
  ablation.failures.assign(18, "");
  ablation.failures[3] = "no data";
  const Findings found = findings(ablation);
  EXPECT_THAT(found.shown, HasSubstr("rolled back 2 times (1 with a fallback) from logits up to 3e+03"));
  EXPECT_THAT(found.not_shown, HasSubstr("1 cells failed; 1 cells have not ended"));
}

TEST(Findings, SayWhatTheNumbersSay) {
  const Findings found = findings(study(usual));
  EXPECT_THAT(found.shown, HasSubstr("Shown, in 18 of 18 cells with 3 seeds over optimizer.lr from 1e-3 to 1e-1: "));
  EXPECT_THAT(found.shown, HasSubstr("none (baseline): largest logit 2e+04, 9 of 9 cells lost, sensitivity 1.333"));
  EXPECT_THAT(found.shown,
              HasSubstr("rms: largest logit 20 (at most 50% of its bound), 0 of 9 cells lost, sensitivity 0.000"));
  EXPECT_THAT(found.shown, HasSubstr("sensitivity against the baseline, beyond the interval over seeds: rms -1.333"));
  EXPECT_THAT(found.not_shown, HasSubstr("that rms differs from the baseline in its best loss: the interval holds 0"));
}

TEST(Findings, ClaimADifferenceOnlyBeyondTheInterval) {
  const Findings found = findings(study([](bool rms, size_t x, size_t seed) {
    return 2 + double(x) + 0.01 * double(seed) - (rms ? 0.5 + 0.001 * double(seed) : 0);
  }));
  EXPECT_THAT(found.shown,
              HasSubstr("best loss against the baseline, beyond the interval over seeds: rms -0.501 ± 0.002"));
  EXPECT_THAT(found.not_shown, Not(HasSubstr("that rms differs")));
  Ablation one = study(usual);
  one.plan.seeds = {4};
  one.plan.cells.resize(6);
  one.results.resize(6);
  EXPECT_THAT(findings(one).not_shown, HasSubstr("with fewer than 3 seeds no interval can be given"));
  one.plan.arms[1].differences.push_back({"b", "1", "2"});
  EXPECT_THAT(findings(one).not_shown, HasSubstr("which of its 2 changed keys makes rms what it is"));
}

TEST(Page, EscapesWhatUsersWrote) {
  Page page("a <b> & \"c\"");
  page.table({{"h"}, {"<script>"}, {"-1.5"}});
  EXPECT_THAT(page.text(), HasSubstr("<h1>a &lt;b&gt; &amp; &quot;c&quot;</h1>"));
  EXPECT_THAT(page.text(), HasSubstr("<td>&lt;script&gt;</td>"));
  EXPECT_THAT(page.text(), HasSubstr("<td class=\"number\">-1.5</td>"));
}

TEST(Charts, HeatMapsKeepTheirPeaks) {
  HeatMap map{.rows = {"a"}, .values = {{}}};
  for (int i = 0; i < 1000; ++i) map.x.push_back(i + 1), map.values[0].push_back(i == 537 ? 9 : 1);
  const HeatMap narrow = narrowed(map, 100);
  ASSERT_EQ(narrow.x.size(), 100u);
  EXPECT_EQ(narrow.x.back(), 1000);
  EXPECT_EQ(narrow.values[0][53], 9);
  EXPECT_EQ(narrow.values[0][52], 1);
}

// gnuplot runs what stands in backticks inside double quotes.
TEST(Charts, NamesAreDrawnAsTheyAre) {
  const auto made = std::filesystem::temp_directory_path() / fmt::format("keel-charts-{}", getpid());
  const std::string name = fmt::format("rms_learned \"x\" {{y}} it's a&b `touch {}`", made.string());
  Chart chart{
      .name = "c",
      .title = "t",
      .x_label = "a_b",
      .y_label = name,
      .series = {{.label = name, .x = {1, 2}, .y = {1, std::nan("")}}, {.label = "", .x = {1, 2}, .y = {INFINITY, 2}}}};
  const Picture picture = draw(chart);
  EXPECT_THAT(picture.light, HasSubstr(fmt::format("rms_learned \"x\" {{y}} it's a&amp;b `touch {}`", made.string())));
  EXPECT_FALSE(std::filesystem::exists(made));
  EXPECT_THAT(picture.dark, ::testing::StartsWith("<svg"));
  EXPECT_THAT(picture.light, HasSubstr("∞"));
  EXPECT_THAT(picture.csv, HasSubstr("\",1,1,,\n"));
  EXPECT_THAT(picture.csv, HasSubstr("\n,1,inf,,\n,2,2,,\n"));
}

TEST(Charts, PointsDrawnAsideKeepTheirX) {
  Chart chart{.name = "c", .title = "t", .x_names = {"a", "b"}};
  for (int line = 0; line < 30; ++line)
    chart.series.push_back({.label = std::to_string(line), .x = {0, 1}, .y = {1, 2}, .aside = line < 15 ? -0.6 : 0.6});
  const std::string csv = draw(chart).csv;
  EXPECT_THAT(csv, HasSubstr("\n0,a,1,,\n0,b,2,,\n"));
  EXPECT_THAT(csv, HasSubstr("\n29,a,1,,\n29,b,2,,\n"));
}

TEST(Charts, NothingToDrawIsSaid) {
  const double nan = std::nan("");
  const std::vector<Series> nothing[] = {
      {}, {{.label = "a"}}, {{.label = "a", .x = {1, 2}, .y = {nan, nan}}}, {{.label = "a", .x = {1}, .y = {-1}}}};
  for (const auto& series : nothing)
    EXPECT_THAT(draw(Chart{.name = "c", .log_y = true, .series = series, .levels = {{"level", 1}}}).light,
                HasSubstr("no values"));
  for (const auto& values : {std::vector<std::vector<double>>{{nan, nan}, {nan, nan}}, {{0, -1}, {-2, nan}}})
    EXPECT_THAT(draw(HeatMap{.name = "h", .x = {1, 2}, .rows = {"a", "b"}, .values = values, .log_color = true}).light,
                HasSubstr("no values"));
}

TEST(Charts, HeatMapsOfAnySize) {
  for (size_t rows : {1, 2})
    for (size_t columns : {1, 2, 3}) {
      HeatMap map{.name = "h", .x = std::vector<double>(columns, 1.0), .rows = std::vector<std::string>(rows, "r")};
      map.values.assign(rows, std::vector<double>(columns, 5.0));
      map.values[0][0] = INFINITY;
      const bool one = rows * columns == 1;
      EXPECT_THAT(draw(map).light, one ? HasSubstr("no values") : HasSubstr("<svg")) << rows << " x " << columns;
      EXPECT_THAT(draw(map).csv, HasSubstr("r,inf"));
    }
}

}  // namespace
}  // namespace keel::lab
