// What a run saves and when.
#include "checkpoints/hook.h"

#include <gmock/gmock.h>
#include <omp.h>
#include <unistd.h>

#include <fstream>

#include "checkpoints/parts.h"
#include "framework/train/run_files_hook.h"
#include "tests/checkpoints/saved_run.h"
#include "tests/framework/io/event_file.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::Action;
namespace fs = std::filesystem;

using Hook = SavedRun;

TEST_F(Hook, SavesWhenDueAndAtTheEnd) {
  EXPECT_EQ(run(), "");
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
  EXPECT_EQ(state_of(10).progress.step, 10);
  EXPECT_EQ(state_of(10).progress.updates, 10);
  EXPECT_THAT(state_of(10).hooks, HasSubstr(R"("script":10)"));
}

TEST_F(Hook, WithoutAFinalOneOnlyWhenDue) {
  options.checkpoint.final = false;
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10)));
}

TEST_F(Hook, AFinalStepThatWasDueIsSavedOnce) {
  total_steps = 10;
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10)));
}

TEST_F(Hook, ADueStepThatWasSkippedIsSavedAtTheNextGoodOne) {
  script.before = {{5, Action::skip}, {6, Action::skip}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(7), file_name(10), file_name(12)));
  EXPECT_EQ(state_of(7).progress.updates, 5);
  EXPECT_EQ(state_of(7).progress.step, 7);
}

TEST_F(Hook, AnEarlyStopIsSavedWhateverFinalSays) {
  options.checkpoint.final = false;
  script.after = {{8, Action::stop_saved}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(8)));
  script.after.clear();
  EXPECT_EQ(run(), file_name(8));
  EXPECT_EQ(first_step, 8);
  EXPECT_EQ(script.seen, 12);
}

// A step that is in trouble after its update is no state to go on from, whatever else is asked for at that step.
TEST_F(Hook, AnUpdateInTroubleIsNotSaved) {
  options.checkpoint.keep = 1;
  for (const Action action : {Action::roll_back, Action::stop_unstable}) {
    script.of_update = {{10, action}};
    script.after = {{10, Action::stop_saved}};
    run();
    EXPECT_THAT(names(), ElementsAre(file_name(5)));
  }
  script = {};
  script.of_update = {{10, Action::lower_lr}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(12)));
}

// Something is still to be done at that step: the state is kept, whatever `final` says.
TEST_F(Hook, AStopAskedForAtTheLastStepIsSaved) {
  options.checkpoint.final = false;
  script.after = {{12, Action::stop_saved}};
  run();
  EXPECT_EQ(ending.outcome, train::Outcome::saved_early);
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
}

TEST_F(Hook, AnUnstableStopSavesNothingAndKeepsOlderFiles) {
  script.before = {{8, Action::skip}, {9, Action::stop_unstable}};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(5)));
  script.before = {{10, Action::stop_unstable}};  // where a save is due
  EXPECT_EQ(run(), file_name(5));
  EXPECT_THAT(names(), ElementsAre(file_name(5)));
}

TEST_F(Hook, KeepsTheNewest) {
  options.checkpoint.every = 2;
  options.checkpoint.keep = 2;
  options.checkpoint.parts = 2;
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(10), file_name(12)));
  EXPECT_THAT(parts_of(options.directory + "/" + file_name(8)), ::testing::IsEmpty());
}

TEST_F(Hook, KeepsEveryNth) {
  options.checkpoint.every = 2;
  options.checkpoint.keep = 1;
  options.checkpoint.keep_every = 4;
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(4), file_name(8), file_name(12)));
}

// What training does while a save is under way does not show in the file.
TEST_F(Hook, InTheBackgroundItIsTheStateOfItsStep) {
  options.checkpoint.every = 1;
  options.checkpoint.keep = 99;
  run();
  const std::string background = std::exchange(options.directory, folder / "waiting");
  options.checkpoint.background = false;
  run();
  for (int64_t step = 1; step <= 12; ++step) {
    const auto weights = read_weights(io, background + "/" + file_name(step), {"w"});
    EXPECT_EQ(weights, read_weights(io, options.directory + "/" + file_name(step), {"w"})) << step;
  }
}

// What this process holds after a number of steps.
struct Held : train::Hook {
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    if (report.step != 200 && report.step != 2000) return {};
    std::ifstream file("/proc/self/statm");
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    resident_pages.push_back(resident);
    files.push_back(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
    return {};
  }
  std::vector<int64_t> resident_pages, files;
};

// Saves of 3 MiB each and everything that a run writes down: one save's buffers left behind would be 270 MiB.
TEST_F(Hook, ManySavesLeaveNothingBehind) {  // CASES R76
  total_steps = 2000;
  telemetry_every = 10;
  weights = 1 << 18;
  options.checkpoint.every = 20;
  options.checkpoint.keep = 2;
  Held held;
  train::RunFilesHook files(io, {.directory = folder / "", .throughput = {}});
  options.note = [&files](const std::string& kind, const io::Json& fields) { files.note(kind, fields); };
  more = {&files, &held};
  run();
  ASSERT_EQ(held.files.size(), 2u);
  EXPECT_LT((held.resident_pages[1] - held.resident_pages[0]) * ::sysconf(_SC_PAGESIZE), int64_t(20) << 20);
  EXPECT_LE(std::abs(held.files[1] - held.files[0]), 2);  // of a save under way
  EXPECT_THAT(names(), ElementsAre(file_name(1980), file_name(2000)));
  EXPECT_EQ(fs::file_size(options.directory + "/" + file_name(2000)) >> 20, 3u);
  const auto lines = [&](const char* name) { return std::ranges::count(testing::read_bytes(folder / name), '\n'); };
  EXPECT_EQ(lines("metrics.jsonl"), 2000);
  EXPECT_EQ(lines("events.jsonl"), 1 + 100);  // the start, and each save
  EXPECT_EQ(io::read_event_folder(folder / "tensorboard").size(), 1u + 2000);
}

TEST_F(Hook, FailedSavesAreNotedUntilThereAreTooMany) {
  std::vector<std::string> kinds;
  options.note = [&](const std::string& kind, const io::Json&) { kinds.push_back(kind); };
  options.checkpoint.every = 2;
  options.checkpoint.max_failed = 3;
  // In the way of one save, and of nothing else.
  fs::create_directories(options.directory + "/" + file_name(4) + ".writing/not empty");
  run();
  EXPECT_THAT(kinds, ElementsAre("saved", "save_failed", "saved", "saved", "saved", "saved"));
  EXPECT_THAT(names(), ElementsAre(file_name(8), file_name(10), file_name(12)));
}

// Training waits for a copy, and so must hear that it has ended without one.
TEST_F(Hook, ACopyThatFailsIsAFailedSave) {
  std::vector<std::string> kinds;
  options.note = [&](const std::string& kind, const io::Json&) { kinds.push_back(kind); };
  options.checkpoint.every = 2;
  int copies = 0;
  options.before_copy = [&] {
    if (++copies == 2) throw std::bad_alloc();
  };
  run();
  EXPECT_THAT(kinds, ElementsAre("saved", "save_failed", "saved", "saved", "saved", "saved"));
  EXPECT_THAT(names(), ElementsAre(file_name(8), file_name(10), file_name(12)));
}

// A save has the rank's threads, not the machine's.
TEST_F(Hook, SavesWithTheThreadsOfTraining) {
  const int threads = omp_get_max_threads();
  std::vector<int> seen;
  options.before_copy = [&] { seen.push_back(omp_get_max_threads()); };
  omp_set_num_threads(threads + 1);
  run();
  omp_set_num_threads(threads);
  EXPECT_THAT(seen, ElementsAre(threads + 1, threads + 1));
}

TEST_F(Hook, RoomForTheLargestCopy) {
  const auto copies = [&](DeviceKind device) { return largest_copy(options, device); };
  EXPECT_EQ(copies(DeviceKind::cpu), Copies::everything);
  options.checkpoint.weights_only = true;
  EXPECT_EQ(copies(DeviceKind::cpu), Copies::weights);
  options.checkpoint.every = std::nullopt;
  EXPECT_EQ(copies(DeviceKind::cpu), Copies::none);
  options.checkpoint.final = false;
  options.checkpoint.background = false;
  EXPECT_EQ(copies(DeviceKind::cpu), Copies::none);
  EXPECT_EQ(copies(DeviceKind::cuda), Copies::everything);
}

// The user's paths served when the run began: an error in mid-run is none of input.
TEST_F(Hook, TooManyFailedSavesEndTheRun) {
  for (bool background : {true, false}) {
    std::vector<std::string> kinds;
    options.note = [&](const std::string& kind, const io::Json&) { kinds.push_back(kind); };
    options.checkpoint.every = 2;
    options.checkpoint.max_failed = 2;
    options.checkpoint.background = background;
    testing::write_bytes(options.directory, "in the way");
    try {
      run();
      ADD_FAILURE() << "the run went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot create the directory"));
      EXPECT_EQ(error.kind(), ErrorKind::internal);
    }
    EXPECT_THAT(kinds, ElementsAre("save_failed", "save_failed"));
    EXPECT_LE(script.seen, 6);
    fs::remove(options.directory);
    script.seen = 0;
  }
}

TEST_F(Hook, WeightsOnlyStillSavesAllOfARunThatIsStopped) {
  options.checkpoint.weights_only = true;
  script.after = {{7, Action::stop_saved}};
  run();
  EXPECT_TRUE(state_of(5).weights_only);
  script.after.clear();
  EXPECT_EQ(run(), file_name(7));
  EXPECT_EQ(first_step, 7);
}

// The stop comes where a save of weights alone was due as well.
TEST_F(Hook, WeightsOnlyOfADueStepAreNotEnoughToGoOnFrom) {
  options.checkpoint.weights_only = true;
  script.after = {{10, Action::stop_saved}};
  run();
  EXPECT_FALSE(state_of(10).weights_only);
  script.after.clear();
  EXPECT_EQ(run(), file_name(10));
  EXPECT_EQ(first_step, 10);
}

}  // namespace
}  // namespace keel::checkpoints
