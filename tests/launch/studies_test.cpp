// Every ready study resolves, and each of its arms trains.
#include <gmock/gmock.h>

#include <regex>

#include "framework/lab/ablation.h"
#include "framework/lab/statistics.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

std::string studies_readme() {
  std::ifstream file(KEEL_SOURCE_DIR "/configs/studies/README.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

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

TEST_P(Studies, TheTableSaysHowManyCells) {
  const size_t cells = lab::make_plan(config::load(study_, {}), GetParam(), "runs").cells.size();
  EXPECT_THAT(studies_readme(),
              ::testing::ContainsRegex(fmt::format("\n. `{}` [^\n]*[^0-9]{} .\n", GetParam(), cells)));
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

// Its numbers are written down, so they must be those of its d and length: in the file, and with what the README gives
// its larger twin.
TEST(AllStudies, GainInitAsksWhatItSays) {
  const std::string readme = studies_readme(), twin = readme.substr(readme.find("larger twin"));
  std::map<std::string, std::string> keys;  // the last of each
  const std::regex number("([a-z_.]+)=([0-9]+)");
  for (std::sregex_iterator found(twin.begin(), twin.end(), number), end; found != end; ++found)
    keys[(*found)[1]] = (*found)[2];
  ASSERT_GE(keys.size(), 8u);
  std::vector<std::string> overrides;
  for (const auto& [key, value] : keys) overrides.push_back(key + "=" + value);
  for (const auto& given : {std::vector<std::string>(), overrides}) {
    const config::Node root = config::load(KEEL_SOURCE_DIR "/configs/studies/gain_init.yaml", given);
    const auto number_at = [](const config::Node& node) { return std::stod(node.text()); };
    const double d = number_at(root["model"]["hidden"]) / number_at(root["model"]["attention"]["heads"]);
    const config::Node arms = root["ablate"]["arms"];
    EXPECT_NEAR(number_at(arms["l2_sqrt_d"]["model.attention.logit_scale.init"]), std::sqrt(d), 1e-4);
    EXPECT_NEAR(number_at(arms["rms_inverse_sqrt_d"]["model.attention.logit_scale.init"]), 1 / std::sqrt(d), 1e-4);
    EXPECT_EQ(number_at(arms["l2_log2_length"]["model.attention.logit_scale"]["length"]),
              number_at(root["data"]["sequence_length"]));
  }
}

TEST(AllStudies, NoneIsWithoutATest) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KEEL_SOURCE_DIR "/configs/studies"))
    files += entry.path().extension() == ".yaml";
  EXPECT_EQ(files, 7u);
}

}  // namespace
}  // namespace keel::testing
