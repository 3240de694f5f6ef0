// What the pages of an ablation and of a run say, on cells and runs made by hand.
#include "framework/lab/ablation_report.h"

#include <gmock/gmock.h>

#include <ranges>
#include <regex>

#include "framework/lab/run_report.h"
#include "tests/support/folder.h"

namespace keel::lab {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Arms at learning rates with seeds, cells of which have ended well, each with a step of logit 10 on the disk.
class PageOfCells : public ::testing::Test {
 protected:
  void make(const std::vector<std::string>& arms, const std::vector<std::string>& rates,
            const std::vector<int64_t>& seeds = {1}) {
    ablation_ = {.directory = folder_ / "study", .plan = {.name = "study", .baseline = arms[0], .seeds = seeds}};
    if (!rates.empty()) ablation_.plan.axes = {{"optimizer.lr", rates}};
    for (const std::string& arm : arms) ablation_.plan.arms.push_back({arm, {}});
    for (int64_t seed : seeds)
      for (const std::string& rate : rates.empty() ? std::vector<std::string>{""} : rates)
        for (const std::string& arm : arms) {
          Cell cell{.name = fmt::format("{}{}-seed{}", arm, rate, seed), .arm = arm, .seed = seed};
          if (!rates.empty()) cell.values = {rate};
          ablation_.plan.cells.push_back(cell);
          ablation_.failures.emplace_back();
          ablation_.results.emplace_back(CellResult{.first_loss = 5.5,
                                                    .valid_loss = 2,
                                                    .bigram_loss = 2.5,
                                                    .largest_logit = 10,
                                                    .entropy = 1,
                                                    .seconds_per_step = 0.1});
          write_steps(cell.name, R"({"step": 1, "loss": 2, "largest_logit": 10})"
                                 "\n");
        }
  }

  void write_steps(const std::string& cell, const std::string& lines) {
    std::filesystem::create_directories(ablation_.directory + "/cells/" + cell);
    testing::write_bytes(ablation_.directory + "/cells/" + cell + "/metrics.jsonl", lines);
  }

  CellResult& result(const std::string& cell) {
    for (size_t i = 0; i < ablation_.results.size(); ++i)
      if (ablation_.plan.cells[i].name == cell) return *ablation_.results[i];
    throw input_error("no cell {}", cell);
  }

  Page page() const { return ablation_report(ablation_, ""); }
  Picture picture(const std::string& name) const {
    const Page whole = page();
    for (const Picture& each : whole.pictures())
      if (each.name == name) return each;
    throw input_error("no picture {}", name);
  }

  testing::TemporaryFolder folder_;
  Ablation ablation_;
};

TEST_F(PageOfCells, TheOverviewSaysWhatRatesDo) {
  make({"none", "rms"}, {"1e-3", "1e-2", "1e-1"});
  for (const char* cell : {"none1e-2-seed1", "none1e-1-seed1"})
    result(cell).lost = "the largest logit of step 3 is 2e4";
  result("none1e-1-seed1").valid_loss = 2.25;
  for (const char* rate : {"1e-3", "1e-2", "1e-1"}) result(fmt::format("rms{}-seed1", rate)).seconds_per_step = 0.12;
  const std::string text = page().text();
  EXPECT_THAT(text, HasSubstr("<th>lost from learning rate</th><th>loss at 1e-1 minus best</th>"));
  EXPECT_THAT(text, ContainsRegex("<td>none</td>.*>2 of 3</td><td class=\"number\">1e-2</td><td "
                                  "class=\"number\">0.250</td>.*>1.000</td></tr>"));
  EXPECT_THAT(text, ContainsRegex("<td>rms</td>.*>0 of 3</td><td class=\"number\">-</td>.*>1.200</td></tr>"));
  EXPECT_THAT(text, HasSubstr("<td>none1e-2-seed1</td><td>the largest logit of step 3 is 2e4</td>"));
}

TEST_F(PageOfCells, ALoadedMachineIsNoCostOfAnArm) {
  make({"none", "rms"}, {"1e-3", "1e-2", "1e-1"});
  for (const char* cell : {"none1e-3-seed1", "rms1e-3-seed1", "rms1e-2-seed1"}) result(cell).seconds_per_step = 0.2;
  EXPECT_THAT(page().text(), HasSubstr(">1.000 (1.000 to 2.000), machine not quiet</td>"))
      << "the median cell of rms took twice as long";
}

// What no curve comes near would press all curves together.
TEST_F(PageOfCells, TheLossBeforeTrainingIsDrawnWhereACurveReachesIt) {
  make({"none", "rms"}, {"1e-3", "1e-2"});
  EXPECT_THAT(picture("loss").light, Not(HasSubstr("before training")));
  EXPECT_THAT(page().text(), HasSubstr("Before training it is 5.50."));
  EXPECT_THAT(page().text(), Not(HasSubstr("not finite stands at")));
  result("none1e-2-seed1").valid_loss = std::nan("");
  result("none1e-2-seed1").lost = "the loss of step 3 is not finite";
  EXPECT_THAT(picture("loss").light, HasSubstr("before training"));
  EXPECT_THAT(picture("loss").light, HasSubstr("with lost cells"));
  EXPECT_THAT(page().text(), HasSubstr("A loss that is not finite stands at that before training."));
}

TEST_F(PageOfCells, WithoutAxesTheArmsStandSideBySide) {
  make({"none", "rms", "layer"}, {});
  EXPECT_THAT(picture("loss").csv, HasSubstr("\nrms,rms,2,,\nlayer,layer,2,,\n"));
  for (const char* arm : {"none", "rms", "layer"})
    EXPECT_EQ(std::ranges::distance(std::ranges::views::split(picture("loss").light, fmt::format(" >{}</tspan>", arm))),
              2)
        << "once, on the axis: a legend would say it again";
}

// One seed's logits went beyond all numbers, whichever is read first.
TEST_F(PageOfCells, ALogitThatIsNotANumberIsInfiniteForAllSeeds) {
  make({"none", "rms"}, {"1e-3"}, {1, 2});
  for (int64_t seed : {1, 2}) {
    make({"none", "rms"}, {"1e-3"}, {1, 2});
    write_steps(fmt::format("none1e-3-seed{}", seed), R"({"step": 1, "loss": 2, "largest_logit": null})"
                                                      "\n");
    EXPECT_THAT(picture("logits_over_steps").csv, HasSubstr("none  1e-3,inf\n")) << seed;
  }
}

TEST_F(PageOfCells, OutliersOfTheStreamAreThere) {
  make({"none", "rms"}, {"1e-3", "1e-2"});
  EXPECT_THAT(page().text(), Not(HasSubstr("Outliers in the residual stream"))) << "no telemetry";
  result("rms1e-3-seed1").outlier_share = 0.25;
  result("rms1e-3-seed1").kurtosis = 30;
  EXPECT_THAT(page().text(), ContainsRegex("<td>rms</td><td class=\"number\">0.2500</td><td "
                                           "class=\"number\">0.2500</td><td class=\"number\">30</td>"));
}

TEST_F(PageOfCells, ManyComparisonsAreCounted) {
  make({"none", "rms"}, {"1e-3", "1e-2"}, {1, 2, 3});
  EXPECT_THAT(page().text(), HasSubstr("4 comparisons, each at 95%")) << "best, sensitivity, and loss at two rates";
}

TEST_F(PageOfCells, FailedCellsAreInTheTableOfCellsAlone) {
  make({"none", "rms"}, {"1e-3"});
  ablation_.results[1].reset();
  ablation_.failures[1] = "no data, nowhere";
  EXPECT_THAT(cells_csv(ablation_), ContainsRegex("\nrms1e-3-seed1,rms,1,1e-3,failed,,.*,\"no data, nowhere\"\n"));
  EXPECT_THAT(costs_csv(ablation_), Not(HasSubstr("rms1e-3")));
}

// A run with heads; the largest logit is 20, unless another one is given.
RunRecord run_with_heads(uint64_t layers, uint64_t heads, size_t rows, double logit = 20) {
  RunRecord run{.directory = "runs/x"};
  for (size_t i = 1; i <= rows; ++i)
    run.steps.push_back({.step = int64_t(i), .loss = 2, .gradient_norm = 1, .largest_logit = i == 2 ? logit : 3});
  HeadRecord record{.layers = layers, .width = heads};
  for (size_t i = 1; i <= rows; ++i) record.steps.push_back(int64_t(i));
  for (size_t i = 0; i < rows * layers * heads; ++i) record.values.push_back(1 + float(i * 7919 % 1000));
  for (const char* name : {"largest_logit", "bound_used", "entropy", "parallel", "q_gain", "k_gain", "logit_scale",
                           "q_gain_gradient", "k_gain_gradient", "logit_scale_gradient", "q_rms", "k_rms"})
    run.heads[name] = record;
  return run;
}

TEST(PageOfARun, BeginsWithAVerdict) {
  EXPECT_THAT(run_report(run_with_heads(2, 2, 3), "").text(), HasSubstr("Not lost by its steps: "));
  EXPECT_THAT(run_report(run_with_heads(2, 2, 3, 2e4), "").text(),
              HasSubstr("Lost: the largest logit of step 2 is 2e+04."));
}

// 4,096 heads at 200 steps.
TEST(PageOfARun, OfALargeModelStaysSmall) {
  const Page page = run_report(run_with_heads(64, 64, 200), "");
  const std::string text = page.text();
  EXPECT_LT(text.size(), 5u << 20);
  const std::regex box("viewBox=\"0 0 [0-9]+ ([0-9]+)\"");
  for (std::sregex_iterator found(text.begin(), text.end(), box), end; found != end; ++found)
    EXPECT_LT(std::stoi((*found)[1]), 3000);
  EXPECT_THAT(text, HasSubstr("By layer, the least of its heads; the CSV has all."));
  for (const Picture& picture : page.pictures())
    if (picture.name == "entropy_heads") {
      EXPECT_EQ(std::count(picture.csv.begin(), picture.csv.end(), '\n'), 1 + 64 * 64);
      EXPECT_EQ(std::count(picture.csv.begin(), picture.csv.end(), ','), 200 * (1 + 64 * 64) + 64) << "and all steps";
    }
}

}  // namespace
}  // namespace keel::lab
