// What a run goes on from.
#include "checkpoints/resume.h"

#include <gmock/gmock.h>

#include "checkpoints/writer.h"
#include "framework/parallel/data_parallel.h"
#include "tests/checkpoints/saved_run.h"
#include "tests/support/errors.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::Action;
namespace fs = std::filesystem;

class ResumedRun : public SavedRun {
 protected:
  // A checkpoint of this run, but for the states of its hooks.
  void write_crafted(const std::string& hooks) {
    Toy model;
    parallel::Mesh mesh(*world, 1);
    parallel::DataParallel data_parallel(model.parameters(), mesh, true);
    optim::Adamw optimizer(model.parameters(), data_parallel.update_spans(), ops::AdamwOptions());
    RunState state{.config = options.config,
                   .environment = "{}",
                   .data_fingerprint = options.data_fingerprint,
                   .qk_norm = options.qk_norm,
                   .hooks = hooks};
    state.progress.step = 5;
    fs::create_directories(options.directory);
    write_checkpoint(*world, io, {.parameters = model.parameters(), .optimizer = &optimizer}, state,
                     {.path = options.directory + "/" + file_name(5)});
  }
};

TEST_F(ResumedRun, TheStoredProbeMustGiveItsLossAgain) {
  probe = {.tokens = {1, 2, 3}, .targets = {2, 3, 4}};
  run();
  EXPECT_EQ(state_of(12).probe.tokens, probe.tokens);
  EXPECT_GT(state_of(12).probe.loss, 1);
  total_steps = 13;
  run();
  EXPECT_EQ(first_step, 12);
  convention = 1.001;
  EXPECT_THAT(testing::message_of([&] { run(); }), HasSubstr("compute something else"));
  options.compare = [](const RunState& stored) {
    return Comparison{.probe_tolerance = stored.config == "name: x" ? 0.01 : 0.0};
  };
  run();
}

TEST_F(ResumedRun, ResumeNoneIsRefusedWhereThereAreCheckpoints) {
  EXPECT_EQ(run("none"), "");
  const std::string message = testing::message_of([&] { run("none"); });
  EXPECT_THAT(message, HasSubstr("checkpoint.resume is none, but " + options.directory + " holds checkpoints"));
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
}

TEST_F(ResumedRun, WeightsOnlyCannotBeGoneOnFrom) {
  options.checkpoint.weights_only = true;
  run();
  EXPECT_TRUE(state_of(12).weights_only);
  EXPECT_THAT(testing::message_of([&] { run(); }), HasSubstr("holds weights only"));
}

// Stopped early, gone on, and killed behind a save of weights alone: the file from before is still whole.
TEST_F(ResumedRun, FilesOfWeightsOnlyAreNotGoneOnFromWhereAnOlderOneIsWhole) {
  options.checkpoint.weights_only = true;
  script.after = {{7, Action::stop_saved}};
  run();
  script.after.clear();
  options.checkpoint.final = false;
  EXPECT_EQ(run(), file_name(7));
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(7), file_name(10)));
  EXPECT_EQ(run(), file_name(7));
  EXPECT_EQ(first_step, 7);
}

// However many of weights alone come after it.
TEST_F(ResumedRun, TheNewestWholeFileStays) {
  options.checkpoint.weights_only = true;
  options.checkpoint.every = 2;
  options.checkpoint.keep = 1;
  script.after = {{3, Action::stop_saved}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(3)));
  script.after = {{9, Action::stop_saved}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(9)));
  script.after.clear();
  EXPECT_EQ(run(), file_name(9));
  EXPECT_THAT(names(), ElementsAre(file_name(9), file_name(12)));
}

TEST_F(ResumedRun, StatesOfHooksThatNobodyWrote) {
  for (const char* hooks : {"{\"script\":", "[1]", "{\"script\":\"seven\"}", ""}) {
    write_crafted(hooks);
    try {
      run();
      ADD_FAILURE() << hooks;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(file_name(5) + ": run/hooks holds no states of detectors"));
    }
  }
}

// The same command again after the first save: nothing is lost.
TEST_F(ResumedRun, ResumeFromAnotherRunThenFromItsOwn) {
  run();
  const std::string begin = options.directory + "/" + file_name(5);
  options.directory = folder / "other";
  script.after = {{11, Action::stop_saved}};
  EXPECT_EQ(run(begin), file_name(5));
  EXPECT_EQ(first_step, 5);
  EXPECT_THAT(names(), ElementsAre(file_name(10), file_name(11)));
  script.after.clear();
  EXPECT_EQ(run(begin), file_name(11));
  EXPECT_EQ(first_step, 11);
  EXPECT_THAT(names(), ElementsAre(file_name(10), file_name(11), file_name(12)));
  EXPECT_FALSE(fs::exists(options.directory + "/" + file_name(11) + ".set-aside"));
}

TEST_F(ResumedRun, ResumeFromItsOwnGoesBack) {
  options.compare = [](const RunState& stored) { return Comparison{.resume = stored.config.substr(8)}; };
  const auto run_from = [&](const std::string& resume) {
    options.config = "resume: " + resume;
    return run(resume);
  };
  run_from("auto");
  fs::create_symlink(options.directory, folder / "link");
  const std::string back = folder / "link/" + file_name(5);
  EXPECT_EQ(run_from(back), file_name(5));
  EXPECT_EQ(first_step, 5);
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
  EXPECT_TRUE(fs::exists(options.directory + "/" + file_name(10) + ".set-aside"));
  EXPECT_EQ(run_from(back), file_name(12));  // the same command, as after a preemption: it has gone back
  EXPECT_EQ(first_step, 12);
  run_from("auto");
  run_from(options.directory + "/" + file_name(5));  // and once more: what was set aside before stays
  EXPECT_EQ(first_step, 5);
  EXPECT_TRUE(fs::exists(options.directory + "/" + file_name(10) + ".set-aside"));
  EXPECT_TRUE(fs::exists(options.directory + "/" + file_name(10) + ".set-aside-2"));
}

}  // namespace
}  // namespace keel::checkpoints
