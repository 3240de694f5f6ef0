// Whole runs in trouble: poisoned data, saves that fail, and what they leave.
#include <gmock/gmock.h>

#include <cstdio>

#include "checkpoints/latest.h"
#include "framework/data/dataset.h"
#include "framework/io/jsonl.h"
#include "framework/lab/ablation.h"
#include "tests/launch/run_fixture.h"
#include "tests/support/disk.h"

namespace keel::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLength = 32, kSequences = 8;

class Recovery : public RunFixture {
 protected:
  // The samples that a run takes in steps [first, last] become uniformly random tokens.
  void poison(int64_t first, int64_t last) {
    const std::string prefix = (directory_ / "corpus").string();
    const auto order =
        data::Dataset({{prefix}}, data::DatasetOptions{.T = kLength, .vocabulary = 257}).training_order(1);
    std::fstream tokens(prefix + ".bin", std::ios::binary | std::ios::in | std::ios::out);
    for (int64_t global = (first - 1) * kSequences; global < last * kSequences; ++global) {
      tokens.seekp(order(global).sample * kLength * 2);
      for (int64_t i = 0; i < kLength; ++i) {
        const auto id = uint16_t(256 * uniform(99, uint64_t(global * kLength + i)));
        tokens.write(reinterpret_cast<const char*>(&id), sizeof id);
      }
    }
  }
  std::vector<io::Json> events(const std::string& run, const std::string& kind) {
    std::vector<io::Json> found;
    for (const io::Json& line : io::read_json_lines((directory_ / "runs" / run / "events.jsonl").string()))
      if (line["event"] == kind) found.push_back(line);
    return found;
  }

  static constexpr const char* kCommon =
      "train run.yaml eval.every=110 eval.sequences=64 checkpoint.every=20 stability.max_skips=1 "
      "'stability.spike={window: 32, min_history: 16}' 'stability.lower_lr={times: 1, steps: 10}' "
      "stability.rollback.times=2 stability.rollback.more_samples=16 ";
};

TEST_F(Recovery, PoisonedDataIsLeftOutAndTheRunIsAsGoodAsAClearOne) {
  const Ended clear = keel(std::string(kCommon) + "train.steps=110 name=clear", 2);
  ASSERT_EQ(clear.code, 0) << clear.output;
  for (const char* kind : {"skip", "lower_lr", "roll_back", "rolled_back", "stop_unstable"})
    EXPECT_TRUE(events("clear", kind).empty()) << kind;

  poison(60, 65);
  const Ended ended =
      keel(std::string(kCommon) + "train.steps=110 name=poisoned \"stability.on_event=cat >> told.jsonl\"", 2);
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(events("poisoned", "skip").size(), 2u);  // before the rate is lowered, and after
  EXPECT_EQ(events("poisoned", "lower_lr").size(), 1u);
  const auto rolled_back = events("poisoned", "rolled_back");
  ASSERT_EQ(rolled_back.size(), 1u);
  EXPECT_EQ(rolled_back[0]["first_step"], 60);
  EXPECT_EQ(rolled_back[0]["left_out"], io::Json({59 * kSequences, 63 * kSequences + 16}));
  EXPECT_THAT(rolled_back[0]["to"].get<std::string>(), HasSubstr("step-00000040.h5"));
  const io::Json skip = events("poisoned", "skip")[0];
  EXPECT_EQ(skip["step"], 60);
  const auto order =
      data::Dataset({{(directory_ / "corpus").string()}}, {.T = kLength, .vocabulary = 257}).training_order(1);
  ASSERT_EQ(skip["samples"].size(), size_t(kSequences));
  for (int64_t i = 0; i < kSequences; ++i)
    EXPECT_EQ(skip["samples"][size_t(i)], io::Json({0, order(59 * kSequences + i).sample}));
  EXPECT_EQ(skip["signal"], "loss");
  EXPECT_GT(skip["value"].get<double>(), skip["threshold"].get<double>());
  EXPECT_GT(skip["threshold"].get<double>(), skip["mean"].get<double>());

  EXPECT_EQ(metric("poisoned", "loss").size(), 110u);
  EXPECT_EQ(metric("poisoned", "updates").back(), 110);
  const double good = metric("clear", "valid_loss").back(), recovered = metric("poisoned", "valid_loss").back();
  std::printf("held-out loss of the clear run %.4f, of the recovered one %.4f\n", good, recovered);
  EXPECT_NEAR(recovered, good, 0.01 * good);
  EXPECT_THAT(ended.output, HasSubstr("spike score: loss"));
  const auto score = events("poisoned", "spike_score");
  ASSERT_EQ(score.size(), 1u);
  EXPECT_TRUE(std::isnan(score[0]["loss_7_of_1000"].get<double>())) << "no step has 128 before it";

  std::vector<std::string> told;
  for (const io::Json& event : io::read_json_lines((directory_ / "told.jsonl").string()))
    told.push_back(event["event"]);
  EXPECT_THAT(told, ElementsAre("skip", "lower_lr", "skip", "roll_back", "rolled_back", "spike_score"));
}

// The same batch again and again: an end with exit 3, and a good checkpoint from before.
TEST_F(Recovery, ExhaustedLimitsStopWithAGoodCheckpoint) {
  poison(60, 65);
  const std::string common = std::string(kCommon) + "train.steps=110 name=run stability.rollback.leave_out=";
  const std::string fallbacks = " 'stability.fallbacks=[{optimizer.lr: 1e-3, optimizer.clip_norm: 0.5}]'";
  const Ended ended = keel(common + "false" + fallbacks, 2);
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("stability.max_skips is used up, stability.lower_lr is used up, no rollback or "
                                      "fallback is left"));
  EXPECT_EQ(events("run", "rolled_back").size(), 3u);  // two, and one more with the fallback
  const auto fallback = events("run", "fallback");
  ASSERT_EQ(fallback.size(), 1u);
  EXPECT_THAT(metric("run", "lr").back(), ::testing::Le(1e-3));
  EXPECT_EQ(events("run", "stop_unstable").size(), 1u);
  const auto files = checkpoints::complete_files((directory_ / "runs/run/checkpoints").string());
  ASSERT_FALSE(files.empty());
  EXPECT_THAT(files.back(), HasSubstr("step-00000040.h5"));
  EXPECT_EQ(keel("inspect --verify " + files.back()).code, 0);
  // What was tried is known to the next process, which says so, and a person can go on from there.
  const Ended next = keel(common + "false" + fallbacks, 2);
  EXPECT_EQ(next.code, 3);
  EXPECT_THAT(next.output, HasSubstr("recovery.json is in force: fallback 1 of stability.fallbacks"));
  const Ended without = keel(common + "false", 2);
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.output, HasSubstr("the run has taken 1 of them, and 0 are given"));
  std::filesystem::remove(directory_ / "runs/run/recovery.json");
  EXPECT_EQ(keel(common + "true", 2).code, 0);
}

// What the ladder did to a cell is part of its result; the weights it ends with are evaluated; and the config that a
// fallback left is no reason to refuse the ablation.
TEST_F(Recovery, ACellSaysWhatWasDoneToIt) {
  poison(60, 65);
  std::ofstream(directory_ / "study.yaml") << kConfig << "\nablate: {arms: {only: {}}}\n";
  std::string command = std::string(kCommon) + "train.steps=110 stability.rollback.leave_out=false " +
                        "'stability.fallbacks=[{optimizer.lr: 1e-3, optimizer.clip_norm: 0.5}]'";
  command.replace(0, command.find(" eval"), "ablate study.yaml");
  ASSERT_EQ(keel(command).code, 0);
  const std::string cell = (directory_ / "runs/study/cells/only-seed1").string();
  const lab::CellResult result = lab::read_result(cell).value();
  EXPECT_EQ(result.end, lab::CellEnd::unstable);
  EXPECT_EQ(result.rollbacks, 4) << "two, that with the fallback, and one more";
  EXPECT_EQ(result.fallbacks, 1);
  EXPECT_EQ(result.lowered_rates, 1) << "those of steps given up do not count";
  EXPECT_GT(result.given_up_logit, 1);
  const lab::RunRecord run = lab::read_steps(cell);
  EXPECT_EQ(run.evaluations.back().step, result.steps);
  EXPECT_EQ(result.valid_loss, run.evaluations.back().loss);
  const Ended again = keel(command);
  EXPECT_EQ(again.code, 0) << again.output;
  // Nor where it was killed before its result was written.
  ASSERT_TRUE(std::filesystem::remove(lab::result_path(cell)));
  const Ended begun = keel(command);
  EXPECT_EQ(begun.code, 0) << begun.output;
}

// The statistics of heads of a step that was not taken are there, though it was no telemetry step.
TEST_F(Recovery, AStepInTroubleIsLookedAtCloser) {
  poison(60, 60);
  ASSERT_EQ(keel(std::string(kCommon) + "name=run train.steps=62 telemetry.every=40").code, 0);
  ASSERT_EQ(events("run", "skip").size(), 1u);
  const Ended steps = run_command("h5dump -y -w 0 -d /entropy/step " + (directory_ / "runs/run/telemetry.h5").string());
  EXPECT_THAT(steps.output, HasSubstr("1, 40, 60"));
}

TEST_F(Recovery, FallbacksAreCheckedBeforeTheRun) {
  for (auto [fallback, word] : {std::pair("{optimizer.lrr: 1e-4}", "lrr"),
                                {"{model.hidden: 64}", "model.hidden"},
                                {"{batch.sequences: 16}", "batch.sequences"},
                                {"{log.every: 3}", "changes nothing"},
                                {"{batch.micro_sequences: 3}", "micro_sequences"}}) {
    const Ended ended = keel(fmt::format("train run.yaml 'stability.fallbacks=[{}]'", fallback));
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(word));
  }
  const Ended clip = keel(
      "train run.yaml model.attention.qk_norm.weight=none model.attention.logit_scale.kind=fixed "
      "'stability.fallbacks=[{stability.qk_clip: {tau: 50}}]'");
  EXPECT_EQ(clip.code, 2) << clip.output;
  EXPECT_THAT(clip.output, HasSubstr("there is nothing to scale"));
}

// Bit for bit the state of its step, though training went on meanwhile.
TEST_F(Recovery, ABackgroundSaveIsTheStateOfItsStep) {
  const std::string common = "train run.yaml parallel.tensor=2 checkpoint.every=1 checkpoint.keep=20 ";
  ASSERT_EQ(keel(common + "name=background", 4).code, 0);
  ASSERT_EQ(keel(common + "name=waiting checkpoint.background=false", 4).code, 0);
  for (int step = 1; step <= 20; ++step)
    expect_same_tensors(checkpoint("background", step), checkpoint("waiting", step));
  EXPECT_EQ(metric("background", "loss"), metric("waiting", "loss"));
}

// CASES R77: a failed save is an event, and too many of them end the run; what was saved before stays.
TEST_F(Recovery, FailedSavesAreEventsThenTheEnd) {
  const std::string saves = (directory_ / "runs/run/checkpoints").string();
  const SmallDisk disk(saves, "2m");
  if (!disk.ok()) GTEST_SKIP() << "this process may not mount";
  // Room for one file of half a MiB, and for what it reserves at first.
  const Ended ended = keel(
      "train run.yaml name=run checkpoint.every=2 checkpoint.max_failed=3 \"stability.on_event=cat >> told.jsonl\"", 2);
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("free some space"));
  const auto failed = events("run", "save_failed");
  ASSERT_EQ(failed.size(), 3u) << ended.output;
  EXPECT_EQ(failed[2]["failed_in_a_row"], 3);
  const auto told = io::read_json_lines((directory_ / "told.jsonl").string());
  ASSERT_EQ(told.size(), 3u) << "the one that ends the run is told, too";
  EXPECT_EQ(told[2]["failed_in_a_row"], 3);
  EXPECT_THAT(failed[0]["reason"].get<std::string>(), HasSubstr("are needed"));
  const auto files = checkpoints::complete_files(saves);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(keel("inspect --verify " + files[0]).code, 0);
}

}  // namespace
}  // namespace keel::testing
