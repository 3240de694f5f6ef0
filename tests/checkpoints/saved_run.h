// A small run that saves, and may be told at any step how to go on.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "checkpoints/hook.h"
#include "checkpoints/latest.h"
#include "checkpoints/reader.h"
#include "checkpoints/resume.h"
#include "framework/data/token_writer.h"
#include "tests/checkpoints/toy.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {

// Answers what it is told to, step by step.
struct Script : train::Hook {
  std::map<int64_t, train::Action> before, of_update, after;
  int64_t seen = 0, step = 0;
  void start(const train::Progress& progress) override { step = progress.step; }
  void limit(train::StepLimits& limits) const override {
    if (before.contains(step + 1)) limits.loss = 0;
  }
  train::Verdict judge(const train::StepReport& report) override {
    step = report.step;
    return {before.contains(step) ? before[step] : train::Action::proceed};
  }
  train::Verdict judge_update(const train::StepReport& report) override {
    return {of_update.contains(report.step) ? of_update[report.step] : train::Action::proceed};
  }
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    ++seen;
    return {after.contains(report.step) ? after[report.step] : train::Action::proceed};
  }
  std::string name() const override { return "script"; }
  nlohmann::json state() const override { return seen; }
  void restore(const nlohmann::json& state) override { seen = state; }
};

class SavedRun : public ::testing::Test {
 protected:
  SavedRun() {
    data::TokenWriter writer(folder / "tokens", 16);
    writer.append(std::vector<int32_t>(400, 3));
    writer.end_document();
    writer.finish();
    dataset.emplace(std::vector<data::Source>{{folder / "tokens"}}, data::DatasetOptions{.T = 8, .vocabulary = 16});
    options = {.directory = folder / "run",
               .checkpoint = {.every = 5},
               .config = "name: x",
               .environment = "{}",
               .data_fingerprint = dataset->fingerprint_text(1),
               .qk_norm = "rms",
               .compare = [](const RunState&) { return Comparison{.probe_tolerance = 1e-4}; }};
  }
  // A run from `resume` on; returns where it began.
  std::string run(const std::string& resume = "auto") {
    parallel::Mesh mesh(*world, world->size());
    Toy model(mesh.tensor_position(), weights);
    const data::SampleOrder order = dataset->training_order(1);
    train::StepBatches batches(*dataset, {1, 8, 2}, false);
    train::Trainer trainer(model, mesh, batches, order,
                           {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.01, .total_steps = 12},
                            .total_steps = total_steps,
                            .telemetry_every = telemetry_every});
    model.convention = convention;
    const CheckpointParts parts{*world, *saves, io_comm, io, model, mesh, trainer, true, probe};
    Resume resume_from(parts, options);
    CheckpointHook hook(parts, options);
    trainer.add(script);
    trainer.add(hook);
    for (train::Hook* other : more) trainer.add(*other);
    const auto found = resume_from.find(resume);
    if (found && resume_from.load(*found).own) hook.saved_already(trainer.progress().step);
    first_step = trainer.progress().step;
    trainer.weights_changed();
    ending = trainer.run();
    return found ? std::filesystem::path(*found).filename().string() : "";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string& path : complete_files(options.directory))
      names.push_back(std::filesystem::path(path).filename());
    return names;
  }
  RunState state_of(int64_t step) { return read_contents(io, options.directory + "/" + file_name(step)).state; }

  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator(), saves = comm::make_self_communicator();
  MPI_Comm io_comm = MPI_COMM_NULL;
  testing::TemporaryFolder folder;
  io::IoThread io;
  std::optional<data::Dataset> dataset;
  CheckpointOptions options;
  int64_t total_steps = 12, telemetry_every = 0, weights = 8;
  train::Probe probe;
  double convention = 1;
  Script script;
  std::vector<train::Hook*> more;
  int64_t first_step = 0;
  train::Ending ending;
};

}  // namespace keel::checkpoints
