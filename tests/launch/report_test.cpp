// `keel report` of a run and of an ablation: one file that needs nothing else, its pictures, and its numbers.
#include <gmock/gmock.h>

#include <set>

#include "framework/lab/cell_result.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Report : public RunFixture {
 protected:
  std::string read(const std::string& path) {
    std::ifstream file(directory_ / path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Nothing is loaded from anywhere, both schemes are there, and every picture stands in files of its own too.
  void expect_whole_page(const std::string& folder, const std::vector<std::string>& pictures) {
    const std::string page = read(folder + "/report.html");
    EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
    EXPECT_THAT(page, Not(HasSubstr("<script")));
    EXPECT_THAT(page, Not(HasSubstr("src=")));
    EXPECT_THAT(page, Not(HasSubstr("href='http")));
    EXPECT_THAT(page, ::testing::EndsWith("</body></html>\n"));
    for (const std::string& name : pictures) {
      EXPECT_THAT(page, HasSubstr("<title>" + name + "_light</title>")) << name;
      EXPECT_THAT(page, HasSubstr("<title>" + name + "_dark</title>")) << name;
      for (const char* end : {".svg", "-dark.svg", ".csv"})
        EXPECT_GT(std::filesystem::file_size(directory_ / folder / "report" / (name + end)), 40u) << name << end;
    }
  }
};

TEST_F(Report, OfARun) {
  ASSERT_EQ(keel("train run.yaml optimizer.lr=3 stability.spike.min_history=4 stability.spike.window=4 "
                 "stability.spike.sigmas=1e-3 stability.spike.deviation_floor=1e-6 stability.max_skips=1 "
                 "stability.lower_lr.times=0 stability.rollback.times=0")
                .code,
            3)
      << "at this rate the loss soon rises, any rise is a spike here, and the first rung is the last";
  const Ended ended = keel("report runs/run/");
  ASSERT_EQ(ended.code, 0) << ended.output;
  expect_whole_page(
      "runs/run", {"loss", "largest_logit", "largest_logit_heads", "bound_used", "entropy_heads", "q_rms_heads",
                   "k_rms_heads", "largest_logit_distance_heads", "q_gain_gradient_heads", "logit_scale_gradient_heads",
                   "update_ratio_heads", "gradient_norm", "lr", "throughput"});
  EXPECT_THAT(read("runs/run/report.html"), HasSubstr("<p class=\"finding\">Not lost by its steps: "));
  EXPECT_THAT(read("runs/run/report.html"), HasSubstr("The largest logits of step"));
  EXPECT_THAT(read("runs/run/report.html"), HasSubstr("deviations above the mean"));
  EXPECT_THAT(read("runs/run/report/loss.csv"), HasSubstr("training,1,5.5"));
}

TEST_F(Report, OfAnAblation) {
  write_config("study.yaml", std::string(kConfig) + R"(
ablate:
  arms:
    none: {model.attention.qk_norm.kind: none}
    rms: {model.attention.qk_norm.kind: rms}
  axes: {optimizer.lr: [1e-3, 1e-2]}
  seeds: [1, 2, 3]
)");
  const std::string common = "ablate study.yaml train.steps=8 eval.every=4 ";
  ASSERT_EQ(keel(common + "--only 1-9").code, 0);
  ASSERT_EQ(keel("report runs/study").code, 0);
  EXPECT_THAT(read("runs/study/report.html"), HasSubstr("Shown, in 9 of 12 cells"));
  EXPECT_THAT(read("runs/study/report.html"), HasSubstr("3 cells have not ended"));
  ASSERT_EQ(keel(common).code, 0);
  const Ended ended = keel("report runs/study");
  ASSERT_EQ(ended.code, 0) << ended.output;
  expect_whole_page("runs/study",
                    {"loss", "largest_logit", "entropy", "least_entropy", "sensitivity", "logits_over_steps"});
  const std::string page = read("runs/study/report.html");
  EXPECT_THAT(page, HasSubstr("<td>model.attention.logit_scale.kind</td><td>fixed</td><td>per_head</td>"));
  EXPECT_THAT(page, HasSubstr("which of its 2 changed keys makes rms what it is"));
  EXPECT_THAT(page, HasSubstr("<h2>Outliers in the residual stream</h2>"));
  EXPECT_THAT(page, HasSubstr("±")) << "three seeds give an interval";
  EXPECT_THAT(page, HasSubstr(fmt::format("a logit above {:g}, or", lab::kLostLogit)));
  EXPECT_THAT(page, HasSubstr("cells lost: 6 of 6 with none, 6 of 6 with rms")) << "eight steps do not beat a bigram";
  EXPECT_THAT(page, HasSubstr("<td class=\"number\">3/3</td>"));
  EXPECT_THAT(read("runs/study/report/loss.csv"), HasSubstr("\nnone,0.001,")) << "as it is, not as it is drawn";
  EXPECT_THAT(read("runs/study/report/loss.svg"), HasSubstr("token bigram"));
}

// Two lengths have no bigram and no loss before training in common, and no sensitivity.
TEST_F(Report, OfAnotherAxisThanTheLearningRate) {
  write_config("study.yaml", std::string(kConfig) + R"(
ablate:
  arms: {none: {model.attention.qk_norm.kind: none}, rms: {}}
  axes: {data.sequence_length: [16, 32]}
)");
  ASSERT_EQ(keel("ablate study.yaml train.steps=6 eval.every=6").code, 0);
  ASSERT_EQ(keel("report runs/study").code, 0);
  EXPECT_THAT(read("runs/study/report.html"), Not(HasSubstr("ensitivity")));
  for (const char* level : {"token bigram", "before training"})
    EXPECT_THAT(read("runs/study/report/loss.svg"), Not(HasSubstr(level)));
  // Fresh weights look at all keys about alike: ln(16!)/16 and ln(32!)/32.
  const std::string entropies = read("runs/study/report/entropy.csv");
  EXPECT_THAT(entropies, ::testing::ContainsRegex("\nnone,16,1\\.[89]"));
  EXPECT_THAT(entropies, ::testing::ContainsRegex("\nnone,32,2\\.[45]"));
}

// List, screen and report say the same of a cell: one was taken and had no step yet, one failed, one was never begun.
TEST_F(Report, OneStateOfACellEverywhere) {
  write_config("study.yaml", std::string(kConfig) + R"(
ablate: {arms: {fine: {}, blind: {data.train: nowhere, model.vocab: 257}, taken: {model.ffn: 96}, later: {model.ffn: 128}}}
)");
  ASSERT_EQ(keel("ablate study.yaml --only 1-2").code, 1);
  std::filesystem::create_directories(directory_ / "runs/study/cells/taken-seed1");
  const Ended list = keel("ablate study.yaml --list"), screen = keel("watch runs/study --once");
  ASSERT_EQ(keel("report runs/study").code, 0);
  const std::string page = read("runs/study/report.html");
  for (const auto& [cell, state] : {std::pair("blind", "failed"), {"taken", "begun"}, {"later", "waiting"}}) {
    const std::string words = fmt::format("{}-seed1 +{}", cell, state);
    EXPECT_THAT(list.output, ::testing::ContainsRegex(words));
    EXPECT_THAT(screen.output, ::testing::ContainsRegex(words));
    EXPECT_THAT(page, HasSubstr(fmt::format("<td>{}-seed1</td><td>{}</td>", cell, state)));
  }
  EXPECT_THAT(screen.lines.at(1), HasSubstr("taken")) << "before those that ended, and those that wait";
}

TEST_F(Report, WatchShowsWhereItStandsAndLeavesNothing) {
  write_config("study.yaml", std::string(kConfig) + "\nablate: {arms: {a: {}, b: {model.ffn: 96}}}\n");
  ASSERT_EQ(keel("ablate study.yaml --only 1").code, 0);
  const auto files = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_))
      names.insert(entry.path().string());
    return names;
  };
  const auto before = files();
  const Ended all = keel("watch runs/study --once"), one = keel("watch runs/study/cells/a-seed1");
  EXPECT_EQ(files(), before);
  ASSERT_EQ(all.code, 0) << all.output;
  EXPECT_THAT(all.lines[0], HasSubstr("1 of 2 cells ended"));
  EXPECT_THAT(all.lines[1], ::testing::ContainsRegex("^a-seed1 +done +loss +[0-9.]+  max logit +[0-9.]+"));
  EXPECT_THAT(all.lines[2], ::testing::ContainsRegex("^b-seed1 +waiting"));
  EXPECT_THAT(one.lines[0], HasSubstr("step 20"));
  EXPECT_THAT(one.output, HasSubstr("start"));
  EXPECT_EQ(keel("watch .").code, 2);
}

TEST_F(Report, WrongFolders) {
  for (const auto& [folder, words] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere", "no such folder"}, {".", "metrics.jsonl is missing"}}) {
    const Ended ended = keel("report " + folder);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.output, HasSubstr(words));
  }
}

}  // namespace
}  // namespace keel::testing
