// What a run goes on from.
#include "checkpoints/resume.h"

#include <gmock/gmock.h>

#include "tests/checkpoints/saved_run.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::Action;
namespace fs = std::filesystem;

using ResumedRun = SavedRun;

TEST_F(ResumedRun, TheStoredProbeMustGiveItsLossAgain) {
  probe = {.tokens = {1, 2, 3}, .targets = {2, 3, 4}};
  run();
  EXPECT_EQ(state_of(12).probe.tokens, probe.tokens);
  EXPECT_GT(state_of(12).probe.loss, 1);
  total_steps = 13;
  run();
  EXPECT_EQ(first_step, 12);
  convention = 1.001;
  EXPECT_THAT(io::message_of([&] { run(); }), HasSubstr("compute something else"));
  options.probe_tolerance = [](const std::string& stored) { return stored == "name: x" ? 0.01 : 0.0; };
  run();
}

TEST_F(ResumedRun, ResumeNoneIsRefusedWhereThereAreCheckpoints) {
  EXPECT_EQ(run("none"), "");
  const std::string message = io::message_of([&] { run("none"); });
  EXPECT_THAT(message, HasSubstr("checkpoint.resume is none, but " + options.directory + " holds checkpoints"));
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
}

TEST_F(ResumedRun, WeightsOnlyCannotBeGoneOnFrom) {
  options.weights_only = true;
  run();
  EXPECT_TRUE(state_of(12).weights_only);
  EXPECT_THAT(io::message_of([&] { run(); }), HasSubstr("holds weights only"));
}

// Stopped early, gone on, and killed behind a save of weights alone: the file from before is still whole.
TEST_F(ResumedRun, FilesOfWeightsOnlyAreNotGoneOnFromWhereAnOlderOneIsWhole) {
  options.weights_only = true;
  script.after = {{7, Action::stop_saved}};
  run();
  script.after.clear();
  options.final = false;
  EXPECT_EQ(run(), file_name(7));
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(7), file_name(10)));
  EXPECT_EQ(run(), file_name(7));
  EXPECT_EQ(first_step, 7);
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
  options.resume_of = [](const std::string& stored) { return stored.substr(8); };
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
