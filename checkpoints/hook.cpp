#include "checkpoints/hook.h"

#include <chrono>

#include "checkpoints/agreement.h"
#include "checkpoints/latest.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"

namespace keel::checkpoints {

LocalTensors CheckpointHook::tensors() const {
  return {.parameters = parts_.parameters,
          .optimizer = &parts_.trainer.optimizer(),
          .data_replica = !parts_.zero && parts_.mesh.data().rank() != 0};
}

bool CheckpointHook::has_own() {
  const bool here = parts_.world.rank() == 0 && !complete_files(options_.directory).empty();
  return comm::all_reduce_value(parts_.world, int64_t(here), comm::Reduction::max) != 0;
}

bool CheckpointHook::is_own(const std::string& path) const {
  const bool inside = parts_.world.rank() == 0 && lies_in(path, options_.directory);
  return comm::all_reduce_value(parts_.world, int64_t(inside), comm::Reduction::max) != 0;
}

std::optional<std::string> CheckpointHook::find(const std::string& resume) {
  const comm::TimeLimit patience(parts_.world, kIoLimit_seconds + kPatience_seconds);
  if (parts_.world.rank() == 0) remove_leftovers(options_.directory);
  if (resume == "auto") return find_latest(parts_.world, parts_.io, options_.directory);
  const bool own = has_own();
  if (resume == "none") {
    if (!own) return std::nullopt;
    throw input_error("checkpoint.resume is none, but {} holds checkpoints: give another name, or remove them",
                      options_.directory);
  }
  if (!own || is_own(resume)) return resume;
  const auto latest = find_latest(parts_.world, parts_.io, options_.directory);
  log::info("this run began from {} and has checkpoints of its own since: the newest is gone on from", resume);
  return latest;
}

std::vector<std::string> CheckpointHook::load(const std::string& path) {
  const comm::TimeLimit patience(parts_.world, kIoLimit_seconds + kPatience_seconds);
  confirm_on_all_ranks(parts_.world, path);
  std::vector<std::string> changes;
  together(parts_.world, [&] {
    const Contents contents = read_contents(parts_.io, path);
    changes = options_.compare_configs(contents.state.config);
    data::check_fingerprint(contents.state.data_fingerprint, options_.data_fingerprint);
    read_tensors(parts_.io, path, tensors(), options_.qk_norm);
    parts_.trainer.progress() = contents.state.progress;
    parts_.trainer.restore_hooks(nlohmann::json::parse(contents.state.hooks));
  });
  const int64_t step = parts_.trainer.progress().step;
  if (is_own(path)) saved_step_ = step;
  if (parts_.world.rank() == 0) set_aside_after(options_.directory, step);
  return changes;
}

train::Verdict CheckpointHook::after_step(const train::StepReport& report, const train::Verdict& verdict,
                                          const train::Progress& progress) {
  unstable_ |= verdict.action == train::Action::stop_unstable;
  // The weights of a skipped step are those before it, but its successor is not known to be sound: wait for a good
  // step.
  due_ |= options_.every > 0 && report.step % options_.every == 0;
  if (due_ && verdict.action == train::Action::proceed) save(progress);
  return {};
}

// A run that stopped on instability keeps its last good file; one that was stopped early is saved whatever `final`
// says, or its work would be lost.
void CheckpointHook::finish(const train::Progress& progress) {
  const bool wanted = options_.final || progress.step < options_.total_steps;
  if (wanted && !unstable_ && saved_step_ != progress.step) save(progress);
}

void CheckpointHook::save(const train::Progress& progress) {
  if (options_.before_save) options_.before_save();
  const auto begin = std::chrono::steady_clock::now();
  together(parts_.world, [&] {
    if (parts_.world.rank() == 0) io::create_directories(options_.directory);
  });
  RunState state{.progress = progress,
                 .config = options_.config,
                 .environment = options_.environment,
                 .data_fingerprint = options_.data_fingerprint,
                 .qk_norm = options_.qk_norm,
                 .hooks = parts_.trainer.hook_states().dump(),
                 .weights_only = options_.weights_only};
  const std::string path = options_.directory + "/" + file_name(progress.step);
  LocalTensors saved = tensors();
  saved.weights_only = options_.weights_only;
  const int64_t bytes = write_checkpoint(
      parts_.world, parts_.io, saved, state,
      {.path = path, .io_comm = parts_.io_comm, .mpi_hints = options_.mpi_hints, .parts = options_.parts});
  saved_step_ = progress.step;
  due_ = false;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log::info("saved {} ({}, {:.2f} s, {}/s)", path, human_bytes(double(bytes)), seconds,
            human_bytes(double(bytes) / seconds));
  if (parts_.world.rank() == 0) remove_old(options_.directory, progress.step, options_.keep);
}

}  // namespace keel::checkpoints
