// What a run saves and when, and what it goes on from.
#include "checkpoints/hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "checkpoints/latest.h"
#include "checkpoints/parts.h"
#include "checkpoints/resume.h"
#include "framework/data/token_writer.h"
#include "tests/checkpoints/toy.h"
#include "tests/framework/io/scratch.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::Action;
namespace fs = std::filesystem;

// Answers what it is told to, step by step.
struct Script : train::Hook {
  std::map<int64_t, Action> before, of_update, after;
  int64_t seen = 0, step = 0;
  void start(const train::Progress& progress) override { step = progress.step; }
  void limit(train::StepLimits& limits) const override {
    if (before.contains(step + 1)) limits.loss = 0;
  }
  train::Verdict judge(const train::StepReport& report) override {
    step = report.step;
    return {before.contains(step) ? before[step] : Action::proceed};
  }
  train::Verdict judge_update(const train::StepReport& report) override {
    return {of_update.contains(report.step) ? of_update[report.step] : Action::proceed};
  }
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    ++seen;
    return {after.contains(report.step) ? after[report.step] : Action::proceed};
  }
  std::string name() const override { return "script"; }
  nlohmann::json state() const override { return seen; }
  void restore(const nlohmann::json& state) override { seen = state; }
};

class Hook : public ::testing::Test {
 protected:
  Hook() {
    data::TokenWriter writer(folder / "tokens", 16);
    writer.append(std::vector<int32_t>(400, 3));
    writer.end_document();
    writer.finish();
    dataset.emplace(std::vector<data::Source>{{folder / "tokens"}}, data::DatasetOptions{.T = 8, .vocabulary = 16});
    options = {.directory = folder / "run",
               .every = 5,
               .config = "name: x",
               .environment = "{}",
               .data_fingerprint = dataset->fingerprint_text(1),
               .qk_norm = "rms",
               .compare_configs = [](const std::string&) { return std::vector<std::string>(); }};
  }
  // A run from `resume` on; returns where it began.
  std::string run(const std::string& resume = "auto") {
    Toy model;
    parallel::Mesh mesh(*world, 1);
    const data::SampleOrder order = dataset->training_order(1);
    train::StepBatches batches(*dataset, {1, 8, 2}, false);
    train::Trainer trainer(model, mesh, batches, order,
                           {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.01, .total_steps = 12},
                            .total_steps = total_steps});
    model.convention = convention;
    const CheckpointParts parts{*world, *saves, MPI_COMM_NULL, io, model, mesh, trainer, true, probe};
    Resume resume_from(parts, options);
    CheckpointHook hook(parts, options);
    trainer.add(script);
    trainer.add(hook);
    if (more) trainer.add(*more);
    const auto found = resume_from.find(resume);
    if (found && resume_from.load(*found).own) hook.saved_already(trainer.progress().step);
    first_step = trainer.progress().step;
    trainer.weights_changed();
    ending = trainer.run();
    return found ? fs::path(*found).filename().string() : "";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string& path : complete_files(options.directory)) names.push_back(fs::path(path).filename());
    return names;
  }
  RunState state_of(int64_t step) { return read_contents(io, options.directory + "/" + file_name(step)).state; }

  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator(), saves = comm::make_self_communicator();
  io::Scratch folder;
  io::IoThread io;
  std::optional<data::Dataset> dataset;
  CheckpointOptions options;
  int64_t total_steps = 12;
  train::Probe probe;
  double convention = 1;
  Script script;
  train::Hook* more = nullptr;
  int64_t first_step = 0;
  train::Ending ending;
};

TEST_F(Hook, SavesWhenDueAndAtTheEnd) {
  EXPECT_EQ(run(), "");
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
  EXPECT_EQ(state_of(10).progress.step, 10);
  EXPECT_EQ(state_of(10).progress.updates, 10);
  EXPECT_THAT(state_of(10).hooks, HasSubstr(R"("script":10)"));
}

TEST_F(Hook, WithoutAFinalOneOnlyWhenDue) {
  options.final = false;
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
  options.final = false;
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
  options.retention.keep = 1;
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
  options.final = false;
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
  options.every = 2;
  options.retention.keep = 2;
  options.parts = 2;
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(10), file_name(12)));
  EXPECT_THAT(parts_of(options.directory + "/" + file_name(8)), ::testing::IsEmpty());
}

TEST_F(Hook, KeepsEveryNth) {
  options.every = 2;
  options.retention = {.keep = 1, .keep_every = 4};
  run();
  EXPECT_THAT(names(), ElementsAre(file_name(4), file_name(8), file_name(12)));
}

// What training does while a save is under way does not show in the file.
TEST_F(Hook, InTheBackgroundItIsTheStateOfItsStep) {
  options.every = 1;
  options.retention.keep = 99;
  run();
  const std::string background = std::exchange(options.directory, folder / "waiting");
  options.background = false;
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

TEST_F(Hook, ManySavesLeaveNothingBehind) {  // CASES R76
  total_steps = 2000;
  options.every = 20;
  options.retention.keep = 2;
  Held held;
  more = &held;
  run();
  ASSERT_EQ(held.files.size(), 2u);
  EXPECT_LT((held.resident_pages[1] - held.resident_pages[0]) * ::sysconf(_SC_PAGESIZE), int64_t(20) << 20);
  EXPECT_LE(std::abs(held.files[1] - held.files[0]), 2);  // of a save under way
  EXPECT_THAT(names(), ElementsAre(file_name(1980), file_name(2000)));
}

TEST_F(Hook, FailedSavesAreNotedUntilThereAreTooMany) {
  std::vector<std::string> kinds;
  options.note = [&](const std::string& kind, const io::Json&) { kinds.push_back(kind); };
  options.every = 2;
  options.max_failed = 3;
  // In the way of one save, and of nothing else.
  fs::create_directories(options.directory + "/" + file_name(4) + ".writing/not empty");
  run();
  EXPECT_THAT(kinds, ElementsAre("saved", "save_failed", "saved", "saved", "saved", "saved"));
  EXPECT_THAT(names(), ElementsAre(file_name(8), file_name(10), file_name(12)));
}

// The user's paths served when the run began: an error in mid-run is none of input.
TEST_F(Hook, TooManyFailedSavesEndTheRun) {
  for (bool background : {true, false}) {
    std::vector<std::string> kinds;
    options.note = [&](const std::string& kind, const io::Json&) { kinds.push_back(kind); };
    options.every = 2;
    options.max_failed = 2;
    options.background = background;
    io::spill(options.directory, "in the way");
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

TEST_F(Hook, TheStoredProbeMustGiveItsLossAgain) {
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

TEST_F(Hook, ResumeNoneIsRefusedWhereThereAreCheckpoints) {
  EXPECT_EQ(run("none"), "");
  const std::string message = io::message_of([&] { run("none"); });
  EXPECT_THAT(message, HasSubstr("checkpoint.resume is none, but " + options.directory + " holds checkpoints"));
  EXPECT_THAT(names(), ElementsAre(file_name(5), file_name(10), file_name(12)));
}

TEST_F(Hook, WeightsOnlyCannotBeGoneOnFrom) {
  options.weights_only = true;
  run();
  EXPECT_TRUE(state_of(12).weights_only);
  EXPECT_THAT(io::message_of([&] { run(); }), HasSubstr("holds weights only"));
}

TEST_F(Hook, WeightsOnlyStillSavesAllOfARunThatIsStopped) {
  options.weights_only = true;
  script.after = {{7, Action::stop_saved}};
  run();
  EXPECT_TRUE(state_of(5).weights_only);
  script.after.clear();
  EXPECT_EQ(run(), file_name(7));
  EXPECT_EQ(first_step, 7);
}

// Stopped early, gone on, and killed behind a save of weights alone: the file from before is still whole.
TEST_F(Hook, FilesOfWeightsOnlyAreNotGoneOnFromWhereAnOlderOneIsWhole) {
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

// The stop comes where a save of weights alone was due as well.
TEST_F(Hook, WeightsOnlyOfADueStepAreNotEnoughToGoOnFrom) {
  options.weights_only = true;
  script.after = {{10, Action::stop_saved}};
  run();
  EXPECT_FALSE(state_of(10).weights_only);
  script.after.clear();
  EXPECT_EQ(run(), file_name(10));
  EXPECT_EQ(first_step, 10);
}

// The same command again after the first save: nothing is lost.
TEST_F(Hook, ResumeFromAnotherRunThenFromItsOwn) {
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

TEST_F(Hook, ResumeFromItsOwnGoesBack) {
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
