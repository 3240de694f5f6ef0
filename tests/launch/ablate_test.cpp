// Whole ablations of the program: the same cells whatever interrupts them, and what they promise to have in common.
#include <gmock/gmock.h>

#include <iterator>
#include <regex>
#include <set>

#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Ablate : public RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    write_config("study.yaml", std::string(kConfig) + kAblate);
  }

  std::string read(const std::string& path) {
    std::ifstream file(directory_ / path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // One column of a table, by cell.
  std::map<std::string, std::string> column(const std::string& study, const std::string& name) {
    std::ifstream file(directory_ / "runs" / study / "cells.csv");
    std::map<std::string, std::string> values;
    std::string line;
    std::vector<std::string> names;
    while (std::getline(file, line)) {
      std::vector<std::string> fields;
      std::istringstream stream(line);
      for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
      if (names.empty()) names = fields;
      const auto at = size_t(std::find(names.begin(), names.end(), name) - names.begin());
      values[fields[0]] = at < fields.size() ? fields[at] : "";
    }
    values.erase("cell");
    return values;
  }

  std::vector<double> cell_metric(const std::string& cell, const std::string& key, const std::string& study = "study") {
    return metric(study + "/cells/" + cell, key);
  }

  static constexpr const char* kAblate = R"(
ablate:
  arms:
    none: {model.attention.qk_norm.kind: none}
    rms: {model.attention.qk_norm.kind: rms}
    rms_fixed: {model.attention.qk_norm.kind: rms, model.attention.logit_scale.kind: fixed}
  axes: {optimizer.lr: [1e-3, 1e-2]}
  seeds: [1, 2]
  baseline: none
)";
};

TEST_F(Ablate, CellsOfOneSeedShareDataAndWeights) {
  const Ended ended = keel("ablate study.yaml train.steps=6 eval.every=3 'ablate.arms.smooth={optimizer.beta2: 0.9}'");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.ours, Contains(HasSubstr("16 of 16 cells finished, 16 lost, 0 failed")));
  EXPECT_EQ(column("study", "end").size(), 16u);
  // `smooth` and `rms` are the same model; step 1 comes before any update.
  const double loss = cell_metric("rms-lr1e-3-seed1", "loss").at(0);
  EXPECT_EQ(cell_metric("rms-lr1e-2-seed1", "loss").at(0), loss);
  EXPECT_EQ(cell_metric("smooth-lr1e-3-seed1", "loss").at(0), loss);
  EXPECT_EQ(cell_metric("rms_fixed-lr1e-3-seed1", "loss").at(0), loss) << "the learned scale starts at the fixed one";
  EXPECT_NE(cell_metric("rms-lr1e-3-seed2", "loss").at(0), loss);
  EXPECT_NE(cell_metric("none-lr1e-3-seed1", "loss").at(0), loss);
  EXPECT_NE(cell_metric("smooth-lr1e-3-seed1", "loss").at(5), cell_metric("rms-lr1e-3-seed1", "loss").at(5));
  EXPECT_EQ(cell_metric("rms-lr1e-3-seed1", "valid_loss").size(), 3u) << "steps 0, 3 and 6";
}

TEST_F(Ablate, TheListSaysWhatEveryArmChanges) {
  const Ended ended = keel("ablate study.yaml --list --only 'rms-*'");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.lines, Contains("arm none: the baseline"));
  EXPECT_THAT(ended.lines, Contains("    model.attention.qk_norm.kind: none -> rms"));
  // What follows from QK-Norm by default is shown, and is not in the arm that forbids it.
  EXPECT_EQ(
      std::count(ended.lines.begin(), ended.lines.end(), "    model.attention.logit_scale.kind: fixed -> per_head"), 1);
  EXPECT_THAT(ended.output, HasSubstr("rms-lr1e-3-seed1"));
  EXPECT_THAT(ended.output, ::testing::Not(HasSubstr("none-lr1e-3-seed1")));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs"));
}

TEST_F(Ablate, SideBySideAndInPartsIsTheSame) {
  const std::string common = "ablate study.yaml train.steps=6 eval.every=3 ablate.seeds=[1] ";
  ASSERT_EQ(keel(common + "name=whole").code, 0);
  ASSERT_EQ(keel(common + "name=groups --groups 2", 2).code, 0);
  EXPECT_EQ(read("runs/groups/cells.csv"), read("runs/whole/cells.csv"));
  for (const char* cells : {"4-6", "1-2", "rms*"}) {
    const Ended ended = keel(common + "name=parts --only '" + cells + "'");
    ASSERT_EQ(ended.code, 0) << ended.output;
  }
  EXPECT_EQ(keel(common + "name=parts").code, 0);
  EXPECT_EQ(read("runs/parts/cells.csv"), read("runs/whole/cells.csv"));
  // Finished cells stay as they are, to the bytes and the time.
  const auto file = directory_ / "runs/whole/cells/rms-lr1e-3-seed1/metrics.jsonl";
  const auto written = std::filesystem::last_write_time(file);
  ASSERT_EQ(keel(common + "name=whole").code, 0);
  EXPECT_EQ(std::filesystem::last_write_time(file), written);
}

// As the tasks of a job array, and one that is started later.
TEST_F(Ablate, ProcessesShareTheCells) {
  const std::string common = "ablate study.yaml train.steps=60 eval.every=30 ablate.seeds=[1] ";
  ASSERT_EQ(keel(common + "name=whole").code, 0);
  const std::string one = fmt::format("{} {} name=shared", KEEL_PROGRAM, common);
  const Ended both = run_command(fmt::format(
      "cd {} && {{ ({}; echo first $?) & ({}; echo second $?) & sleep 0.7; {}; echo third $?; wait; }} 2>&1",
      directory_.string(), one, one, one));
  for (const char* end : {"first 0", "second 0", "third 0"}) EXPECT_THAT(both.lines, Contains(end)) << both.output;
  EXPECT_EQ(read("runs/shared/cells.csv"), read("runs/whole/cells.csv"));
  for (const auto& [cell, end] : column("shared", "end")) {
    EXPECT_EQ(end, "done");
    EXPECT_EQ(cell_metric(cell, "loss", "shared").size(), 60u) << cell;
    EXPECT_THAT(read("runs/shared/cells/" + cell + "/events.jsonl"), ::testing::Not(HasSubstr("resume"))) << cell;
  }
}

TEST_F(Ablate, AnUnstableCellIsAResultAndAFailedOneIsTriedAgain) {
  // One arm diverges at once, one has no data to read.
  write_config("failing.yaml", std::string(kConfig) + R"(
ablate:
  arms:
    fine: {}
    wild: {optimizer.lr: 1e30, optimizer.clip_norm: null}
    blind: {data.train: nowhere, model.vocab: 257}
)");
  const std::string command = "ablate failing.yaml stability.max_skips=1";
  for (int ranks : {2, 0}) {
    const Ended ended = keel(command, ranks);
    ASSERT_EQ(ended.code, 1) << ended.output;
    EXPECT_THAT(ended.ours.back(), HasSubstr("2 of 3 cells finished"));
    EXPECT_THAT(ended.ours.back(), HasSubstr("1 failed; the same command goes on"));
    EXPECT_THAT(read("runs/failing/cells/blind-seed1/failure.json"), HasSubstr("nowhere"));
    const auto ends = column("failing", "end");
    EXPECT_EQ(ends.size(), 3u);
    EXPECT_EQ(ends.at("blind-seed1"), "failed");
    EXPECT_EQ(ends.at("fine-seed1"), "done");
    EXPECT_EQ(ends.at("wild-seed1"), "unstable");
    EXPECT_EQ(column("failing", "valid_loss").at("wild-seed1"), "nan");
  }
  EXPECT_THAT(keel("ablate failing.yaml --list").output, ::testing::ContainsRegex("blind-seed1 +failed "));
  EXPECT_THAT(keel("watch runs/failing --once").output, HasSubstr("2 of 3 cells ended, 1 failed"));
  ASSERT_EQ(keel("tokenize text.txt --out nowhere").code, 0);
  const Ended ended = keel(command);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.ours, Contains(HasSubstr("3 of 3 cells finished")));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs/failing/cells/blind-seed1/failure.json"));
}

// The first rank alone cannot open a file; the other waits for it, so the program ends. The cell says why, and the next
// start comes to the others.
TEST_F(Ablate, AFailureOfOneRankIsKeptAndDoesNotKeepTheOthersWaiting) {
  const std::string broken = "runs/study/cells/none-lr1e-3-seed1", other = "runs/study/cells/rms-lr1e-3-seed1";
  std::filesystem::create_directories(directory_ / broken);
  std::filesystem::create_symlink("metrics.jsonl", directory_ / broken / "metrics.jsonl");
  const std::string command = "ablate study.yaml train.steps=6 --only 1-2 parallel.time_limit=5s";
  for (bool result : {false, true}) {
    const Ended ended = keel(command, 2);
    EXPECT_NE(ended.code, 0) << ended.output;
    EXPECT_THAT(read(broken + "/failure.json"), HasSubstr("metrics.jsonl"));
    EXPECT_EQ(std::filesystem::exists(directory_ / other / "result.json"), result) << ended.output;
  }
}

TEST_F(Ablate, WhatNoRanksFitIsRefusedBeforeAnythingRuns) {
  const std::string odd = "ablate study.yaml 'ablate.arms.odd={batch.sequences: 6, batch.micro_sequences: 4}'";
  const Ended ended = keel(odd);
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.ours.back(), HasSubstr("6 sequences do not divide"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs"));
  EXPECT_EQ(keel(odd + " train.steps=6 --only 1").code, 0) << "other cells may run";
}

// Tables follow from the cells' files.
TEST_F(Ablate, TablesComeBack) {
  const std::string command = "ablate study.yaml train.steps=6 eval.every=3 ablate.seeds=[1]";
  ASSERT_EQ(keel(command).code, 0);
  const std::string table = read("runs/study/cells.csv");
  ASSERT_FALSE(table.empty());
  for (const char* name : {"cells.csv", "costs.csv", "ablation.h5"})
    ASSERT_TRUE(std::filesystem::remove(directory_ / "runs/study" / name)) << name;
  ASSERT_EQ(keel(command).code, 0);
  EXPECT_EQ(read("runs/study/cells.csv"), table);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "runs/study/ablation.h5"));
  // One that cannot be written is no end.
  std::filesystem::remove(directory_ / "runs/study/ablation.h5");
  std::filesystem::create_directories(directory_ / "runs/study/ablation.h5/occupied");
  const Ended ended = keel(command);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("warning: tables are not up to date"));
}

TEST_F(Ablate, LostCellsEndEarlyWhereAsked) {
  // One learning rate beats the bigram; the other teaches nothing and is above it at steps 125 and 150.
  const std::string common =
      "ablate study.yaml train.steps=200 eval.every=25 ablate.seeds=[1] "
      "'ablate.arms={none: {model.attention.qk_norm.kind: none}}' 'ablate.axes={optimizer.lr: [1e-2, 1e-7]}' ";
  for (const char* stop : {"false", "true"}) {
    const std::string name = std::string("stop_") + stop;
    const Ended ended = keel(common + "ablate.stop.lost=" + stop + " name=" + name);
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(column(name, "end").at("none-lr1e-2-seed1"), "done");
    EXPECT_EQ(column(name, "lost").at("none-lr1e-2-seed1"), "");
    EXPECT_THAT(column(name, "lost").at("none-lr1e-7-seed1"), HasSubstr("above a bigram's"));
  }
  EXPECT_EQ(column("stop_false", "end").at("none-lr1e-7-seed1"), "done");
  EXPECT_EQ(column("stop_false", "steps").at("none-lr1e-7-seed1"), "200");
  EXPECT_EQ(column("stop_true", "end").at("none-lr1e-7-seed1"), "lost");
  EXPECT_THAT(column("stop_true", "reason").at("none-lr1e-7-seed1"), HasSubstr("lost at step 150"));
  EXPECT_EQ(column("stop_true", "steps").at("none-lr1e-7-seed1"), "150") << "the second half begins after step 100";
}

// What a bigram reaches depends on how many ids there are.
TEST_F(Ablate, ArmsOfOtherVocabulariesHaveBigramsOfTheirOwn) {
  const Ended ended = keel(
      "ablate study.yaml train.steps=6 ablate.seeds=[1] 'ablate.axes={optimizer.lr: [1e-2]}' "
      "'ablate.arms={none: {}, again: {train.z_loss: 1e-4}, wide: {model.vocab: 5000}}'");
  ASSERT_EQ(ended.code, 0) << ended.output;
  auto bigrams = column("study", "bigram_loss");
  EXPECT_EQ(bigrams.at("again-lr1e-2-seed1"), bigrams.at("none-lr1e-2-seed1"));
  EXPECT_NE(bigrams.at("wide-lr1e-2-seed1"), bigrams.at("none-lr1e-2-seed1"));
}

// Killed at ten moments anywhere in its life, then left alone: the table of an undisturbed one, byte for byte.
TEST_F(Ablate, KilledTenTimesIsUndisturbed) {
  const std::string common = "ablate study.yaml train.steps=12 eval.every=4 checkpoint.every=3 checkpoint.final=false ";
  const double start_seconds = keel(common + "--list").seconds;
  const Ended whole = keel(common + "name=whole");
  ASSERT_EQ(whole.code, 0) << whole.output;
  // Moments of which ten take about half of its life; one that comes to its end before its time begins anew.
  int kills = 0;
  for (uint64_t i = 0; kills < 10 && i < 40; ++i) {
    const double seconds = start_seconds * 0.7 + uniform(11, i) * whole.seconds / 10;
    const Ended ended = run_command(fmt::format("cd {} && timeout -s KILL {:.2f} {} {} name=killed",
                                                directory_.string(), seconds, KEEL_PROGRAM, common));
    if (ended.code == 137) {
      ++kills;
      continue;
    }
    ASSERT_EQ(ended.code, 0) << ended.output;
    std::filesystem::remove_all(directory_ / "runs/killed");
    kills = 0;
  }
  ASSERT_EQ(kills, 10) << "it came to its end too often";
  size_t finished = 0;
  for (const auto& cell : std::filesystem::directory_iterator(directory_ / "runs/killed/cells"))
    finished += std::filesystem::exists(cell.path() / "result.json");
  RecordProperty("finished when killed for the last time", int(finished));
  const Ended last = keel(common + "name=killed");
  ASSERT_EQ(last.code, 0) << last.output;
  EXPECT_EQ(column("killed", "end").size(), 12u);
  EXPECT_EQ(read("runs/killed/cells.csv"), read("runs/whole/cells.csv"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs/killed/cells/rms-lr1e-3-seed1/checkpoints"))
      << "a finished cell keeps no checkpoint where checkpoint.final is false";
}

// As long per cell that is left as the cells so far have taken: between the time of their steps and that of the
// program.
TEST_F(Ablate, TellsHowLongItWillTake) {
  const Ended ended = keel("ablate study.yaml train.steps=300 eval.every=300 checkpoint.every=null --only 1-3");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const std::regex told("cell [0-9]+/12 ([a-z0-9_-]+): held-out loss .*  ETA (?:([0-9]+)m)?([0-9]+)s$");
  double steps_seconds = 0;
  int cells = 0;
  for (const std::string& line : ended.ours) {
    std::smatch found;
    if (!std::regex_search(line, found, told)) continue;
    ++cells;
    for (const char* part : {"seconds_data", "seconds_forward_backward", "seconds_reduction", "seconds_update"})
      for (double seconds : cell_metric(found[1], part)) steps_seconds += seconds;
    const double eta = (found[2].matched ? 60 * std::stod(found[2]) : 0) + std::stod(found[3]);
    const double left_per_done = double(3 - cells) / cells;
    EXPECT_GE(eta + 1, steps_seconds * left_per_done) << line;
    EXPECT_LE(eta - 1, ended.seconds * left_per_done) << line;
  }
  EXPECT_EQ(cells, 3) << ended.output;
  // In a terminal every step says it, on one line.
  const Ended live =
      run_command(fmt::format("cd {} && script -qec '{} ablate study.yaml train.steps=6 --only 4 name=live' /dev/null",
                              directory_.string(), KEEL_PROGRAM));
  EXPECT_EQ(live.code, 0) << live.output;
  EXPECT_THAT(live.output, ::testing::ContainsRegex("\r.\\[Kcell 4/12 [a-z0-9_-]+: step 5/6  loss [0-9.]+  max logit "
                                                    "[0-9.]+  ETA [0-9]+s"));
}

// With a command that stands in for Slurm's: two tasks of an array share the cells, and end as the program does.
TEST_F(Ablate, TheSlurmScriptIsATaskOfAnArray) {
  const std::string common = "study.yaml train.steps=60 eval.every=30 ablate.seeds=[1] ";
  ASSERT_EQ(keel("ablate " + common + "name=whole").code, 0);
  std::ofstream(directory_ / "slurm.sh") << fmt::format(R"sh(
rm -rf bin; mkdir bin
printf '#!/bin/sh\necho $OMP_NUM_THREADS >> threads\nexec "$@"\n' > bin/srun
ln -s {1} bin/keel
chmod +x bin/*
export PATH=$PWD/bin:$PATH
(bash {0}/launch/slurm/ablate.sh {2} name=array; echo first $?) &
KEEL={1} bash {0}/launch/slurm/ablate.sh {2} name=array; echo second $?
wait
SLURM_CPUS_PER_TASK=3 bash {0}/launch/slurm/ablate.sh {2} name=array --only 99; echo wrong $?
)sh",
                                                        KEEL_SOURCE_DIR, KEEL_PROGRAM, common);
  const Ended both = run_command(fmt::format("cd {} && timeout 300 bash slurm.sh", directory_.string()));
  for (const char* end : {"first 0", "second 0", "wrong 2"}) EXPECT_THAT(both.lines, Contains(end)) << both.output;
  EXPECT_EQ(read("runs/array/cells.csv"), read("runs/whole/cells.csv"));
  std::istringstream threads(read("threads"));
  EXPECT_THAT(std::multiset<std::string>(std::istream_iterator<std::string>(threads), {}),
              ::testing::UnorderedElementsAre("1", "1", "3"));
  for (const auto& [cell, end] : column("array", "end")) {
    EXPECT_EQ(cell_metric(cell, "loss", "array").size(), 60u) << cell;
    EXPECT_THAT(read("runs/array/cells/" + cell + "/events.jsonl"), ::testing::Not(HasSubstr("resume"))) << cell;
  }
}

TEST_F(Ablate, ASignalSavesAndTheSameCommandGoesOn) {
  const std::string common = "ablate study.yaml train.steps=4000 eval.every=4000 checkpoint.every=null --only 1 ";
  const Ended stopped =
      run_command(fmt::format("cd {} && timeout -s TERM 4 {} {}", directory_.string(), KEEL_PROGRAM, common));
  EXPECT_EQ(stopped.code, 124) << "timeout's own code; " << stopped.output;
  EXPECT_THAT(stopped.ours.back(), HasSubstr("the same command goes on"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "runs/study/cells.csv"));
  const Ended limited = keel(common + "train.stop_after=1s");
  EXPECT_EQ(limited.code, 4) << limited.output;
}

TEST_F(Ablate, OtherKeysDoNotMixWithFinishedCells) {
  ASSERT_EQ(keel("ablate study.yaml train.steps=6 --only 1").code, 0);
  for (const char* change : {"train.steps=7", "train.steps=6 model.ffn=32", "train.steps=6 data.valid=corpus",
                             "train.steps=6 eval.sequences=4"}) {
    const Ended ended = keel(std::string("ablate study.yaml ") + change);
    EXPECT_EQ(ended.code, 2) << change << ended.output;
    EXPECT_THAT(ended.ours.at(0), HasSubstr("none-lr1e-3-seed1 is finished")) << change;
  }
  for (const auto& [change, words] : {std::pair("ablate.seeds=[2]", "no cell of this config"),
                                      {"ablate.stop.lost=true", "ablate.stop.lost: false -> true"}}) {
    const Ended ended = keel(std::string("ablate study.yaml train.steps=6 ") + change);
    EXPECT_EQ(ended.code, 2) << change << ended.output;
    EXPECT_THAT(ended.ours.at(0), HasSubstr(words));
  }
  EXPECT_EQ(keel("ablate study.yaml train.steps=6 log.every=7 ablate.seeds=[1,2,3] --only 1").code, 0);
}

// A cell that has begun goes on from its checkpoint, so its config is as fixed as that of a finished one.
TEST_F(Ablate, OtherKeysDoNotMixWithBegunCells) {
  const std::string command = "ablate study.yaml train.steps=4000 eval.every=4000 --only 1 train.stop_after=1s ";
  ASSERT_EQ(keel(command).code, 4);
  const Ended ended = keel(command + "train.z_loss=1e-4");
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.ours.at(0), HasSubstr("none-lr1e-3-seed1 has begun"));
  EXPECT_THAT(ended.ours.at(0), HasSubstr("train.z_loss"));
  EXPECT_EQ(keel(command + "log.every=7").code, 4) << "what changes no number may change";
  EXPECT_EQ(keel(command + "ablate.seeds=[1,2,3]").code, 4);
}

// The first point of the grid has the baseline do what the arm does.
TEST_F(Ablate, AnArmsDifferencesAreThoseOfAllPoints) {
  const Ended ended = keel(
      "ablate study.yaml --list 'ablate.arms={a: {}, b: {model.attention.qk_norm.kind: rms}}' ablate.baseline=a "
      "'ablate.axes={model.preset: [olmo2, llama3]}' ");
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.lines, Contains("    model.attention.qk_norm.kind: none -> rms"));
}

TEST_F(Ablate, WrongInput) {
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {"ablate run.yaml", "ablate: missing"},
           {"ablate study.yaml ablate.baseline=nne", "did you mean none?"},
           {"ablate study.yaml 'ablate.arms.rms={model.attention.qk_norm.knd: rms}'", "did you mean kind?"},
           {"ablate study.yaml 'ablate.axes={optimizer.lr: [fast]}'", "optimizer.lr: needs a number"},
           {"ablate study.yaml data.valid=null", "data.valid"},
           {"ablate study.yaml 'ablate.arms.fast={optimizer: {lr: 1}}'", "optimizer.lr is an axis as well"},
           {"ablate study.yaml --only 99", "none of the 12 cells"},
           {"ablate study.yaml --groups 3", "3"}}) {
    const Ended ended = keel(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << ended.output;
    ASSERT_FALSE(ended.ours.empty()) << arguments << ended.output;
    EXPECT_THAT(ended.ours.back(), HasSubstr(words)) << arguments;
  }
}

}  // namespace
}  // namespace keel::testing
