// A run over data that makes gradients NaN at known steps, up the ladder and back again, with the loop around the
// trainer that `keel train` has.
#include "checkpoints/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoints/hook.h"
#include "checkpoints/resume.h"
#include "framework/data/token_writer.h"
#include "tests/checkpoints/toy.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kPoison = 7;
constexpr int64_t kLength = 8, kRows = 2;

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() {
    write_data({});
    std::filesystem::create_directories(directory);
  }

  data::Dataset dataset() {
    return data::Dataset({{folder / "tokens"}}, data::DatasetOptions{.T = kLength, .vocabulary = 16});
  }
  // Samples of these steps, in the order that a run of `kRows` takes them, hold the poison.
  void write_data(const std::vector<int64_t>& poisoned_steps) {
    std::vector<int32_t> ids(4001, 3);
    if (!poisoned_steps.empty()) {
      const data::SampleOrder order = dataset().training_order(1);
      for (int64_t step : poisoned_steps) ids[size_t(order((step - 1) * kRows).sample * kLength + 2)] = kPoison;
    }
    data::TokenWriter writer(folder / "tokens", 16);
    writer.append(ids);
    writer.end_document();
    writer.finish();
  }

  struct Result {
    train::Outcome outcome;
    int64_t began, step, updates;
    std::vector<data::SampleRange> left_out;
    std::vector<int64_t> went_back_to;
  };

  // A process: rollbacks until the run ends, or until `most` of them.
  Result run(int64_t most = 100) {
    Recovery recovery(*world, directory, options);
    std::optional<Rollback> rollback;
    Result result{};
    do {
      const data::Dataset data = dataset();
      Toy model;
      model.poison = kPoison;
      parallel::Mesh mesh(*world, 1);
      const data::SampleOrder order = data.training_order(1);
      train::StepBatches batches(data, {1, kLength, kRows}, false);
      train::Trainer trainer(
          model, mesh, batches, order,
          {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.01, .total_steps = 40}, .total_steps = 40});
      train::StabilityHook stability(options, {}, [&](int64_t step) { return recovery.may_roll_back(step); });
      const CheckpointParts parts{*world, *saves, MPI_COMM_NULL, io, model, mesh, trainer};
      const CheckpointOptions saving{.directory = directory + "/checkpoints",
                                     .checkpoint = {.every = 5, .keep = 10},
                                     .config = "name: x",
                                     .environment = "{}",
                                     .data_fingerprint = data.fingerprint_text(1),
                                     .qk_norm = "rms",
                                     .compare = [](const RunState&) { return Comparison(); }};
      Resume resume(parts, saving);
      CheckpointHook hook(parts, saving);
      trainer.add(stability);
      trainer.add(hook);
      const auto back = rollback ? rollback : recovery.pending();
      const auto found = back ? resume.find(*back, "auto") : resume.find("auto");
      if (!found) trainer.weights_changed();
      if (found && resume.load(*found).own) hook.saved_already(trainer.progress().step);
      recovery.went_back();
      if (!rollback) result.began = trainer.progress().step;
      if (rollback) result.went_back_to.push_back(trainer.progress().step);
      recovery.leave_out(trainer.progress().samples);
      result.outcome = trainer.run().outcome;
      result.step = trainer.progress().step;
      result.updates = trainer.progress().updates;
      result.left_out = trainer.progress().samples.left_out();
      if (result.outcome == train::Outcome::roll_back) rollback = recovery.roll_back(stability.troubled());
    } while (result.outcome == train::Outcome::roll_back && int64_t(result.went_back_to.size()) < most);
    fallbacks_taken = recovery.fallbacks_taken();
    return result;
  }

  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator(), saves = comm::make_self_communicator();
  testing::TemporaryFolder folder;
  io::IoThread io;
  const std::string directory = folder / "run";
  config::StabilityConfig options{.max_skips = 1,
                                  .spike = {.enabled = false},
                                  .lower_lr = {.times = 0},
                                  .rollback = {.times = 3, .per_checkpoint = 2, .more_samples = 0}};
  int64_t fallbacks_taken = 0;
};

TEST_F(RecoveryTest, ACalmRunDoesNothing) {
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::done);
  EXPECT_EQ(result.updates, 40);
  EXPECT_FALSE(std::filesystem::exists(directory + "/recovery.json"));
}

// CASES R26: back to the checkpoint before, and never again through the samples of the two steps.
TEST_F(RecoveryTest, GoesBackAndLeavesTheSamplesOut) {
  write_data({19, 20});
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::done);
  EXPECT_THAT(result.went_back_to, ElementsAre(15));
  EXPECT_THAT(result.left_out, ElementsAre(data::SampleRange{36, 40}));
  EXPECT_EQ(result.step, 40);
  EXPECT_EQ(result.updates, 40);
}

TEST_F(RecoveryTest, MoreSamplesAreLeftOutWhereAsked) {
  write_data({19, 20, 21, 22});
  options.rollback.more_samples = 4;
  const Result result = run();
  EXPECT_THAT(result.went_back_to, ElementsAre(15));
  EXPECT_THAT(result.left_out, ElementsAre(data::SampleRange{36, 44}));
  EXPECT_EQ(result.outcome, train::Outcome::done);
}

// CASES R26: the same batch again and again, and an end to it.
TEST_F(RecoveryTest, WithoutLeavingOutItEnds) {
  write_data({19, 20});
  options.rollback.leave_out = false;
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::unstable);
  EXPECT_THAT(result.went_back_to, ElementsAre(15, 15, 10));
  EXPECT_EQ(complete_files(directory + "/checkpoints").back(), directory + "/checkpoints/" + file_name(15));
}

TEST_F(RecoveryTest, CountsAcrossProcesses) {
  write_data({19, 20});
  options.rollback.leave_out = false;
  EXPECT_THAT(run(1).went_back_to, ElementsAre(15));  // and a second rollback was decided, but never made
  const Result result = run();
  EXPECT_THAT(result.went_back_to, ElementsAre(10));
  EXPECT_EQ(result.outcome, train::Outcome::unstable);
  EXPECT_THAT(run().went_back_to, IsEmpty());
}

// Killed before it could go back: the next process does, though a newer file lies there.
TEST_F(RecoveryTest, WhatWasDecidedIsDoneByTheNextProcess) {
  write_data({19, 20});
  options.rollback.leave_out = false;
  EXPECT_THAT(run(2).went_back_to, ElementsAre(15, 15));  // the third, to 10, was decided and never made
  EXPECT_EQ(complete_files(directory + "/checkpoints").back(), directory + "/checkpoints/" + file_name(15));
  EXPECT_EQ(run().began, 10);
  EXPECT_EQ(run().began, 15);  // once
}

// Killed right after the decision: the next process takes the same samples as this one would have.
TEST_F(RecoveryTest, WhatIsLeftOutIsKnownToTheNextProcess) {
  write_data({19, 20});
  Recovery(*world, directory, options)
      .roll_back({.first_step = 19, .last_step = 20, .first_sample = 36, .end_sample = 40});
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::done);
  EXPECT_THAT(result.went_back_to, IsEmpty());
  EXPECT_EQ(result.updates, 40);
  EXPECT_THAT(result.left_out, ElementsAre(data::SampleRange{36, 40}));
}

TEST_F(RecoveryTest, BeforeTheFirstCheckpointItBeginsAgain) {
  write_data({2, 3});
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::done);
  EXPECT_THAT(result.went_back_to, ElementsAre(0));
  EXPECT_EQ(result.updates, 40);
}

TEST_F(RecoveryTest, FallbacksFollow) {
  write_data({19, 20});
  options.rollback.leave_out = false;
  options.rollback.times = 1;
  options.fallbacks.resize(2);
  const Result result = run();
  EXPECT_EQ(result.outcome, train::Outcome::unstable);
  EXPECT_THAT(result.went_back_to, ElementsAre(15, 15, 15));
  EXPECT_EQ(fallbacks_taken, 2);
}

TEST_F(RecoveryTest, CalmForgives) {
  options.rollback.times = 1;
  options.calm_steps = 10;
  Recovery recovery(*world, directory, options);
  recovery.roll_back({.first_step = 19, .last_step = 20});
  EXPECT_FALSE(recovery.may_roll_back(30));
  EXPECT_TRUE(recovery.may_roll_back(31));
}

TEST_F(RecoveryTest, ADamagedFileIsNamed) {
  testing::write_bytes(directory + "/recovery.json", "{\"gone_back_to\": 3}");
  EXPECT_THAT(testing::message_of([&] { Recovery recovery(*world, directory, options); }),
              ::testing::HasSubstr("recovery.json"));
}

}  // namespace
}  // namespace keel::checkpoints
