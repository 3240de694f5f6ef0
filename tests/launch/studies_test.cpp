// Every ready study resolves, and each of its arms trains.
#include <gmock/gmock.h>

#include "framework/lab/ablation.h"
#include "framework/lab/statistics.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

class Studies : public RunFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    study_ = fmt::format("{}/configs/studies/{}.yaml", KEEL_SOURCE_DIR, GetParam());
  }
  std::string study_;
  static constexpr const char* kData = " data.train=corpus data.valid=corpus-valid ";
};

TEST_P(Studies, ResolvesAndEveryArmTrains) {
  const Ended listed = keel("ablate " + study_ + " --list" + kData);
  ASSERT_EQ(listed.code, 0) << listed.output;
  const Ended ended = keel("ablate " + study_ + kData +
                           "train.steps=2 schedule.warmup_steps=1 eval.sequences=2 batch.sequences=1 "
                           "'ablate.axes={optimizer.lr: [1e-2]}'");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const lab::Ablation ablation = lab::read_ablation((directory_ / "runs" / GetParam()).string());
  EXPECT_GE(ablation.plan.arms.size(), 4u);
  for (size_t i = 0; i < ablation.results.size(); ++i) {
    ASSERT_TRUE(ablation.results[i]);
    EXPECT_EQ(ablation.results[i]->end, lab::CellEnd::done) << ablation.plan.cells[i].name << ended.output;
    EXPECT_EQ(ablation.results[i]->outside_bound, 0) << ablation.plan.cells[i].name;
  }
  for (size_t i = 0; i < ablation.plan.arms.size(); ++i)
    EXPECT_EQ(ablation.plan.arms[i].differences.empty(), i == 0) << ablation.plan.arms[i].name;
}

TEST_P(Studies, LearningRatesAreLogSpaced) {
  const lab::Plan plan = lab::make_plan(config::load(study_, {}), GetParam(), "runs");
  for (const lab::Axis& axis : plan.axes) {
    if (axis.key != "optimizer.lr") continue;
    std::vector<double> rates;
    for (const std::string& value : axis.values) rates.push_back(std::stod(value));
    EXPECT_TRUE(lab::log_spaced(rates));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Studies,
                         ::testing::Values("lr_sensitivity", "bf16_vs_fp32", "outliers", "scope_and_gain",
                                           "alternatives", "long_context", "gain_init"),
                         [](const auto& info) { return std::string(info.param); });

TEST(AllStudies, NoneIsWithoutATest) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KEEL_SOURCE_DIR "/configs/studies"))
    files += entry.path().extension() == ".yaml";
  EXPECT_EQ(files, 7u);
}

}  // namespace
}  // namespace keel::testing
