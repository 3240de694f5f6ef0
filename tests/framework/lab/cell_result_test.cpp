// How a cell is judged from what its run left.
#include "framework/lab/cell_result.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <regex>
#include <set>

#include "framework/io/files.h"
#include "framework/lab/ablation.h"
#include "framework/lab/events.h"
#include "tests/support/folder.h"

namespace keel::lab {
namespace {

using ::testing::HasSubstr;

// Ten quiet steps, held-out loss from 5 to 2.
RunRecord quiet_run() {
  RunRecord run;
  for (int64_t step = 1; step <= 10; ++step)
    run.steps.push_back({.step = step,
                         .loss = 5 - 0.3 * double(step),
                         .gradient_norm = 1,
                         .lr = 1e-3,
                         .largest_logit = 10 + double(step % 4),
                         .tokens_per_second = 100 * double(step),
                         .seconds = 0.1 * double(step),
                         .accepted = step != 4});
  run.evaluations = {{0, 5, 4}, {5, 3, 2.5}, {10, 2, 1.5}};
  run.events = {{{"event", "start"}}, {{"event", "memory"}, {"bytes", 4096}}};
  return run;
}

TEST(CellResult, NumbersOfAQuietRun) {
  const CellResult result = judge(quiet_run(), 2.5, false);
  EXPECT_EQ(result.steps, 10);
  EXPECT_EQ(result.first_loss, 5);
  EXPECT_EQ(result.valid_loss, 2);
  EXPECT_EQ(result.valid_nats_per_byte, 1.5);
  EXPECT_DOUBLE_EQ(result.train_loss, 2);
  EXPECT_EQ(result.largest_logit, 13);
  EXPECT_EQ(result.last_logit, 12);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_NEAR(result.seconds_per_step, 0.55, 1e-12);
  EXPECT_EQ(result.memory_bytes, 4096);
  EXPECT_EQ(result.lost, "");
  EXPECT_FALSE(result.bound_used);
}

TEST(CellResult, LostByEachRuleAlone) {
  EXPECT_THAT(judge(quiet_run(), 1.9, false).lost, HasSubstr("above a bigram's 1.9"));
  RunRecord run = quiet_run();
  run.steps[6].largest_logit = 1.01e4;
  EXPECT_THAT(judge(run, 2.5, false).lost, HasSubstr("largest logit of step 7"));
  run = quiet_run();
  run.steps[2].loss = std::nan("");
  EXPECT_THAT(judge(run, 2.5, false).lost, HasSubstr("the loss of step 3"));
  run = quiet_run();
  run.steps[2].gradient_norm = INFINITY;
  EXPECT_THAT(judge(run, 2.5, false).lost, HasSubstr("the gradient of step 3"));
  // The label does not touch the measured loss.
  EXPECT_EQ(judge(run, 2.5, false).valid_loss, 2);
}

TEST(CellResult, ARunThatEndedNotFiniteHasNoLoss) {
  RunRecord run = quiet_run();
  run.evaluations.pop_back();
  run.steps.back().loss = std::nan("");
  EXPECT_TRUE(std::isnan(judge(run, 2.5, false).valid_loss));
  run.steps.back().largest_logit = std::nan("");
  EXPECT_TRUE(std::isinf(judge(run, 2.5, false).largest_logit));
}

// Nothing stands in for the first or the last evaluation.
TEST(CellResult, ARunWithoutTheEvaluationsItIsJudgedByIsRefused) {
  RunRecord run = quiet_run();
  run.evaluations.pop_back();
  EXPECT_THROW(judge(run, 2.5, false), Error);
  run = quiet_run();
  run.evaluations.erase(run.evaluations.begin());
  EXPECT_THROW(judge(run, 2.5, false), Error);
}

TEST(CellResult, UseOfTheBound) {
  RunRecord run = quiet_run();
  for (StepRecord& step : run.steps) step.bound_used = 0.05 * double(step.step);
  EXPECT_NEAR(judge(run, 2.5, false).bound_used.value(), 0.5, 1e-12);
  EXPECT_EQ(judge(run, 2.5, false).outside_bound, 0);
  run.steps[3].bound_used = 1.005;
  EXPECT_EQ(judge(run, 2.5, false).outside_bound, 1);
  EXPECT_EQ(judge(run, 2.5, true).outside_bound, 0) << "bf16 rounds q and k by up to 2^-8 each";
  run.steps[4].bound_used = 1.01;
  EXPECT_EQ(judge(run, 2.5, true).outside_bound, 1);
}

TEST(CellResult, EntropyOfTheLastTelemetryStep) {
  RunRecord run = quiet_run();
  EXPECT_FALSE(judge(run, 2.5, false).entropy) << "no telemetry";
  run.heads["entropy"] = {{1, 5}, 2, 2, {4, 4, 4, 4, 3, 2.5, 0.5, 2}};  // 2 rows of 2 layers, 2 heads
  const CellResult result = judge(run, 2.5, false);
  EXPECT_EQ(result.entropy, 2);
  EXPECT_EQ(result.least_entropy, 0.5);
  EXPECT_EQ(result_from_json(to_json(result)).least_entropy, 0.5);
  run.heads["entropy"].values.back() = std::nanf("");
  const CellResult broken = result_from_json(to_json(judge(run, 2.5, false)));
  EXPECT_TRUE(std::isnan(broken.entropy.value()));
  EXPECT_TRUE(std::isnan(broken.least_entropy.value()));
}

TEST(CellResult, TheResidualStreamOfTheLastTelemetryStep) {
  RunRecord run = quiet_run();
  EXPECT_FALSE(judge(run, 2.5, false).kurtosis) << "no telemetry";
  run.heads["stream_outliers"] = {{1, 5}, 3, 1, {0.5, 0.5, 0.5, 0.125, 0.25, 0}};
  run.heads["stream_kurtosis"] = {{1, 5}, 3, 1, {90, 90, 90, 3, 4, 40}};
  const CellResult result = result_from_json(to_json(judge(run, 2.5, false)));
  EXPECT_EQ(result.outlier_share, 0.25);
  EXPECT_EQ(result.kurtosis, 40);
  run.heads["stream_kurtosis"].values[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(judge(run, 2.5, false).kurtosis.value()));
}

// 37 steps of a loaded machine, three of a quiet one.
TEST(CellResult, QuickStepsAreThoseWithNothingElseAtWork) {
  RunRecord run = quiet_run();
  run.steps.resize(40, run.steps.back());
  for (size_t i = 0; i < 40; ++i) run.steps[i].seconds = i == 3 || i == 30 || i == 31 ? 0.1 : 0.2;
  const CellResult result = judge(run, 2.5, false);
  EXPECT_EQ(result.quick_seconds_per_step, 0.1);
  EXPECT_EQ(result.seconds_per_step, 0.2);
  EXPECT_EQ(result_from_json(to_json(result)).quick_seconds_per_step, 0.1);
}

TEST(CellResult, ResultsOfEarlierVersionsAreRead) {
  io::Json json = to_json(judge(quiet_run(), 2.5, false));
  for (const char* name : {"outlier_share", "kurtosis", "quick_seconds_per_step"}) json.erase(name);
  json.erase("entropy");
  json.erase("least_entropy");
  EXPECT_FALSE(result_from_json(json).entropy);
}

TEST(Ablation, AResultThatLacksWhatCountsIsNamed) {
  const testing::TemporaryFolder folder;
  io::Json json = to_json(judge(quiet_run(), 2.5, false));
  json.erase("rollbacks");
  io::write_file(result_path(folder / ""), json.dump());
  EXPECT_THAT([&] { read_result(folder / ""); },
              ::testing::ThrowsMessage<Error>(HasSubstr("result.json: written by another version; remove it")));
}

// A step taken at a rate of 0 changes nothing, and is taken all the same.
TEST(CellResult, SkippedStepsAreThoseNotTaken) {
  const testing::TemporaryFolder folder;
  io::write_file(folder / "metrics.jsonl", R"({"step":0,"valid_loss":4})"
                                           "\n"
                                           R"({"step":1,"loss":3,"verdict":"proceed","update_norm":0.5})"
                                           "\n"
                                           R"({"step":2,"loss":3,"verdict":"skip","update_norm":0})"
                                           "\n"
                                           R"({"step":3,"loss":3,"verdict":"lower_lr","update_norm":0.1})"
                                           "\n"
                                           R"({"step":4,"loss":3,"verdict":"proceed","update_norm":0})"
                                           "\n"
                                           R"({"step":4,"valid_loss":3})"
                                           "\n");
  EXPECT_EQ(judge(read_steps(folder / ""), 2.5, false).skipped_steps, 1);
}

TEST(CellResult, WhatTheLadderDid) {
  RunRecord run = quiet_run();
  run.events = {{{"event", "lower_lr"}, {"step", 3}},
                {{"event", "lower_lr"}, {"step", 7}},
                {{"event", "rolled_back"}, {"step", 8}, {"largest_logit", 300.0}},
                {{"event", "resume"}, {"step", 5}},
                {{"event", "lower_lr"}, {"step", 6}},
                {{"event", "fallback"}, {"step", 9}, {"largest_logit", INFINITY}},
                {{"event", "resume"}, {"step", 6}}};
  const CellResult result = judge(run, 2.5, false);
  EXPECT_EQ(result.lowered_rates, 2) << "that of step 7 was given up";
  EXPECT_EQ(result.rollbacks, 2);
  EXPECT_EQ(result.fallbacks, 1);
  EXPECT_EQ(result.given_up_logit, INFINITY);
  EXPECT_EQ(result.largest_logit, 13) << "of the steps that are part of the run";
  EXPECT_EQ(to_json(result_from_json(to_json(result))), to_json(result));
}

// The note at the end says what was held and repeats no plan.
TEST(CellResult, MemoryHeldBesideMemoryPlanned) {
  RunRecord run = quiet_run();
  EXPECT_FALSE(judge(run, 2.5, false).peak_resident_bytes);
  run.events.push_back({{"event", "memory"}, {"peak_resident_bytes", 6000}});
  const CellResult result = result_from_json(to_json(judge(run, 2.5, false)));
  EXPECT_EQ(result.memory_bytes, 4096);
  EXPECT_EQ(result.peak_resident_bytes, 6000);
  Ablation ablation;
  ablation.plan.cells = {{"a-seed1", "a", {}, 1, {}}};
  ablation.results = {result};
  EXPECT_THAT(costs_csv(ablation), HasSubstr(",memory_bytes,peak_resident_bytes\n"));
  EXPECT_THAT(costs_csv(ablation), ::testing::EndsWith(",4096,6000\n"));
  EXPECT_THAT(cells_csv(ablation), ::testing::Not(HasSubstr("6000"))) << "which is the same from run to run";
}

TEST(CellResult, SpikesNeedAHistory) {
  RunRecord run = quiet_run();
  EXPECT_EQ(text_of_share(judge(run, 2.5, false).spikes.loss_7), "-");
  while (run.steps.size() < 400) {
    run.steps.push_back(run.steps.back());
    run.steps.back().loss += run.steps.size() == 300 ? 5 : run.steps.size() == 301 ? -5 : 0;
  }
  EXPECT_EQ(text_of_share(judge(run, 2.5, false).spikes.loss_7), "0.0037") << "one of 272";
}

TEST(Events, TheSeverestAndTheLastAreShown) {
  RunRecord run;
  for (int step = 1; step <= 500; ++step) {
    run.events.push_back({{"event", "saved"}, {"step", step}});
    run.events.push_back({{"event", step == 3 ? "rolled_back" : step == 4 ? "resume" : "skip"}, {"step", step}});
  }
  std::vector<std::string> shown;
  for (const io::Json* event : shown_events(run, 3))
    shown.push_back(fmt::format("{} {}", event->at("event").get<std::string>(), event->at("step").get<int>()));
  EXPECT_THAT(shown, ::testing::ElementsAre("rolled_back 3", "skip 499", "skip 500"));
  EXPECT_EQ(shown_events(run, 1000).size(), 500u) << "without saves";
}

std::set<std::string> quoted_words(const std::string& text) {  // "like_this"
  static const std::regex kWord("\"([a-z_]+)\"");
  std::set<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), kWord), end; at != end; ++at) words.insert((*at)[1]);
  return words;
}

// Kinds are the first argument of event() and note(), and the names of verdicts.
TEST(Events, EveryKindThatIsWrittenIsKnown) {
  namespace fs = std::filesystem;
  const auto read = [](const fs::path& path) { return io::read_file(path.string(), 1 << 20); };
  const fs::path root = KEEL_SOURCE_DIR;
  static const std::regex kCall("\\b(event|note)\\(([^,{]*),");
  std::set<std::string> kinds = quoted_words(read(root / "framework/train/step_report.cpp"));
  for (const char* silent : {"proceed", "stop_saved"}) EXPECT_EQ(kinds.erase(silent), 1u) << silent;
  for (const char* folder : {"framework/train", "checkpoints", "launch"})
    for (const fs::path& path : fs::recursive_directory_iterator(root / folder)) {
      if (path.extension() != ".cpp") continue;
      const std::string text = read(path);
      for (std::sregex_iterator call(text.begin(), text.end(), kCall), end; call != end; ++call)
        kinds.merge(quoted_words((*call)[2]));
    }
  EXPECT_GE(kinds.size(), 14u);
  for (const std::string& kind : kinds) EXPECT_TRUE(severities().contains(kind)) << kind;
  EXPECT_EQ(severity({{"event", "environment_changed"}}), 0) << "a run on another machine is in no trouble";
}

TEST(CellResult, ReadsBackFromJson) {
  CellResult result = judge(quiet_run(), 1.9, false);
  result.bound_used = 0.25;
  result.end = CellEnd::unstable;
  result.valid_loss = std::nan("");
  result.largest_logit = INFINITY;
  EXPECT_EQ(to_json(result_from_json(to_json(result))), to_json(result));
  EXPECT_EQ(result_from_json(to_json(result)).end, CellEnd::unstable);
  EXPECT_TRUE(std::isinf(result_from_json(to_json(result)).largest_logit));
}

TEST(Ablation, TablesHoldALinePerFinishedCell) {
  Ablation ablation;
  ablation.plan.axes = {{"optimizer.lr", {"1e-3"}}};
  ablation.plan.cells = {{"a-lr1e-3-seed1", "a", {"1e-3"}, 1, {}}, {"b-lr1e-3-seed1", "b", {"1e-3"}, 1, {}}};
  ablation.results = {judge(quiet_run(), 2.5, false), std::nullopt};
  ablation.failures = {"", ""};
  ablation.results[0]->entropy = 1.25;
  ablation.results[0]->reason = "said \"no\", then";
  const std::string csv = cells_csv(ablation);
  EXPECT_THAT(csv, ::testing::StartsWith("cell,arm,seed,optimizer.lr,end,steps,first_loss,valid_loss,"));
  EXPECT_THAT(csv, HasSubstr("\na-lr1e-3-seed1,a,1,1e-3,done,10,5,2,1.5,"));
  EXPECT_THAT(csv, HasSubstr(",bound_used,entropy,least_entropy,outlier_share,kurtosis,outside_bound,"));
  EXPECT_THAT(csv, HasSubstr(",,1.25,,,,0,"));
  EXPECT_THAT(csv, ::testing::EndsWith(",\"said \"\"no\"\", then\"\n"));
  EXPECT_THAT(csv, ::testing::Not(HasSubstr("b-lr")));
}

}  // namespace
}  // namespace keel::lab
