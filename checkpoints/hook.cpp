#include "checkpoints/hook.h"

#include <omp.h>

#include <chrono>
#include <filesystem>

#include "checkpoints/writer.h"
#include "framework/base/clock.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/base/trace.h"
#include "framework/io/files.h"

namespace keel::checkpoints {

Copies largest_copy(const CheckpointOptions& options, DeviceKind device) {
  if (device == DeviceKind::cuda) return Copies::everything;  // any run may be stopped early
  if (!options.checkpoint.background || !options.checkpoint.every) return Copies::none;
  return options.checkpoint.weights_only ? Copies::weights : Copies::everything;
}

void CheckpointHook::start(const train::Progress&) {
  LocalTensors saved = parts_.tensors();
  const Copies copies = largest_copy(options_, saved.parameters.device().kind);
  if (copies == Copies::none) return;
  saved.weights_only = copies == Copies::weights;
  snapshot_.take(saved);
}

void CheckpointHook::before_update() {
  if (!copied_.valid()) return;
  const auto begin = Clock::now();
  copied_.wait();
  copied_ = {};
  stalled_seconds_ += seconds_since(begin);
}

train::Verdict CheckpointHook::after_step(const train::StepReport& report, const train::Verdict& verdict,
                                          const train::Progress& progress) {
  if (saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) collect();
  // The weights of a skipped step are those before it, but its successor is not known to be sound: wait for a good
  // step.
  due_ |= options_.checkpoint.every && report.step % *options_.checkpoint.every == 0;
  if (due_ && verdict.action == train::Action::proceed) {
    wait_for_save();  // one at a time
    start_save(progress, options_.checkpoint.background);
    if (!options_.checkpoint.background) wait_for_save();
  }
  return {};
}

// A run that stopped on instability, or goes back, keeps its last good file; one that was stopped early is saved
// whatever `final` says, or its work would be lost.
void CheckpointHook::finish(const train::Progress& progress, const train::Ending& ending) {
  const bool sound = ending.outcome == train::Outcome::done || ending.outcome == train::Outcome::saved_early;
  const bool goes_on = ending.outcome == train::Outcome::saved_early;
  // Else nobody ends a slot of the others.
  const auto deadline = sound ? Clock::now() + options_.checkpoint.final_save_limit : Clock::time_point::max();
  wait_for_save(deadline);
  if (!sound || !(options_.checkpoint.final || goes_on) ||
      (saved_step_ == progress.step && (whole_step_ == saved_step_ || !goes_on)))
    return;
  options_.checkpoint.max_failed = 1;
  if (goes_on) options_.checkpoint.weights_only = false;
  start_save(progress, false);
  wait_for_save(deadline);
}

RunState CheckpointHook::state_at(const train::Progress& progress) {
  RunState state{.progress = progress,
                 .config = options_.config,
                 .environment = options_.environment,
                 .data_fingerprint = options_.data_fingerprint,
                 .qk_norm = options_.qk_norm,
                 .hooks = parts_.trainer.hook_states().dump(),
                 .probe = parts_.probe,
                 .weights_only = options_.checkpoint.weights_only};
  if (!state.probe.empty()) state.probe.loss = train::probe_loss(parts_.model, state.probe);
  return state;
}

// Not copied: the caller waits for the save. What lies on a GPU is always copied.
void CheckpointHook::start_save(const train::Progress& progress, bool copied) {
  if (options_.before_save) options_.before_save();
  const auto begin = Clock::now();
  LocalTensors tensors = parts_.tensors();
  tensors.weights_only = options_.checkpoint.weights_only;
  copied |= tensors.parameters.device().kind == DeviceKind::cuda;
  RunState state = state_at(progress);
  std::optional<std::promise<void>> copying;
  if (copied) copied_ = copying.emplace().get_future();
  saving_ = std::async(std::launch::async, [this, tensors, copying = std::move(copying), state = std::move(state),
                                            threads = omp_get_max_threads()]() mutable {
    trace::name_thread("saving");
    omp_set_num_threads(threads);  // a new thread has as many as the machine
    // What is handed on ends with the call: an error leaves nobody waiting for the copy.
    return save(tensors, state, std::exchange(copying, std::nullopt));
  });
  due_ = false;
  stalled_seconds_ = seconds_since(begin);
}

// Where the ranks that save no longer hear each other, some see a failed save and others none, and there will be no
// further one: that is no failed save, but the end.
CheckpointHook::Saved CheckpointHook::save(const LocalTensors& tensors, const RunState& state, Copying copying) {
  const Span span("save", state.progress.step);
  try {
    return save_in_steps(tensors, state, std::move(copying));
  } catch (const Error& error) {
    if (parts_.saves.broken()) comm::end_all_ranks(error);
    throw;
  }
}

// A copy that fails (no memory, a GPU in error) is a failed save on all ranks. Training waits for the copy, not for
// them.
void CheckpointHook::copy(const LocalTensors& tensors, int64_t step, Copying copying) {
  comm::together(parts_.saves, [&] {
    const Copying ends_here = std::exchange(copying, std::nullopt);  // which is what training waits for
    const Span span("copy of the state", step);
    if (options_.before_copy) options_.before_copy();
    snapshot_.take(tensors);
  });
}

CheckpointHook::Saved CheckpointHook::save_in_steps(LocalTensors tensors, const RunState& state, Copying copying) {
  const auto begin = Clock::now();
  comm::Communicator& saves = parts_.saves;
  saves.stand_at(state.progress.step, "saving");
  const double limit_seconds = options_.time_limit_seconds();
  const comm::TimeLimit patience(saves, limit_seconds + kPatience_seconds);
  Saved saved{.path = options_.directory + "/" + file_name(state.progress.step),
              .step = state.progress.step,
              .whole = !state.weights_only};
  if (copying) {
    copy(tensors, saved.step, std::move(copying));
    tensors.snapshot = &snapshot_;
  }
  run_on_rank_0(saves, limit_seconds, parts_.io, "creating " + options_.directory,
                [&](io::IoContext&) { io::create_directories(options_.directory); });
  saved.bytes =
      write_checkpoint(saves, parts_.io, tensors, state,
                       {.path = saved.path,
                        .io_comm = parts_.io_comm,
                        .mpi_hints = {options_.checkpoint.mpi_hints.begin(), options_.checkpoint.mpi_hints.end()},
                        .parts = options_.checkpoint.parts,
                        .io_limit_seconds = limit_seconds});
  // All ranks wait, or those that do not would be in the next step's exchanges while rank 0 still removes files.
  run_on_rank_0(
      saves, limit_seconds, parts_.io, "removing old checkpoints from " + options_.directory, [&](io::IoContext&) {
        remove_old(options_.directory, saved.step, options_.checkpoint, saved.whole ? saved.step : whole_step_);
      });
  saves.stand_at(saved.step, "between saves");
  saved.seconds = seconds_since(begin);
  return saved;
}

// Waits for a save that is under way, on all ranks. They answer each other meanwhile: one that hangs is missed within
// the time limit of exchanges, and a slow disk has its own. Some ranks may have seen its end before.
void CheckpointHook::wait_for_save(Clock::time_point deadline) {
  constexpr auto kBetweenAnswers = std::chrono::milliseconds(250);  // a quarter of the shortest parallel.time_limit
  constexpr double kBetweenLines_seconds = 30;
  parts_.world.stand_at(parts_.trainer.progress().step, "waiting for a save");
  const auto begin = Clock::now();
  const auto waits = [&] {
    const auto until = std::min(Clock::now() + kBetweenAnswers, deadline);
    return saving_.valid() && saving_.wait_until(until) == std::future_status::timeout;
  };
  double next_line_seconds = kBetweenLines_seconds;
  while (comm::lowest_rank_where(parts_.world, waits()) < parts_.world.size()) {
    if (Clock::now() >= deadline)
      comm::end_all_ranks(
          Error(ErrorKind::internal,
                fmt::format("the last save has not ended within {} s (checkpoint.final_save_limit): the newest "
                            "complete checkpoint in {} is what is kept",
                            options_.checkpoint.final_save_limit.count(), options_.directory)));
    if (seconds_since(begin) < next_line_seconds) continue;
    log::info(
        "training waits for a save to end, for {:.0f} s so far (a disk that does not answer within {:.0f} s ends "
        "the run: checkpoint.time_limit)",
        seconds_since(begin), options_.time_limit_seconds());
    next_line_seconds += kBetweenLines_seconds;
  }
  stalled_seconds_ += seconds_since(begin);
  if (saving_.valid()) collect();
}

// What became of a save that has ended. All ranks see the same outcome, each after the step at which it looks.
void CheckpointHook::collect() {
  try {
    const Saved saved = saving_.get();
    saved_step_ = saved.step;
    if (saved.whole) whole_step_ = saved.step;
    failed_in_a_row_ = 0;
    log::info("saved {} ({}, {:.2f} s, {}/s; training waited {:.3f} s)", saved.path, human_bytes(double(saved.bytes)),
              saved.seconds, human_bytes(double(saved.bytes) / saved.seconds), stalled_seconds_);
    if (options_.note)
      options_.note("saved", {{"step", saved.step},
                              {"path", saved.path},
                              {"bytes", saved.bytes},
                              {"seconds", saved.seconds},
                              {"stalled_seconds", stalled_seconds_}});
  } catch (const Error& error) {
    note_failure(error);
  }
}

// The one that ends the run is an event like any other. By then the user's paths have served for a while.
void CheckpointHook::note_failure(const Error& error) {
  ++failed_in_a_row_;
  if (options_.note)
    options_.note("save_failed",
                  {{"reason", error.what()}, {"failed_in_a_row", failed_in_a_row_}, {"last_saved_step", saved_step_}});
  if (failed_in_a_row_ >= options_.checkpoint.max_failed) throw in_mid_run(error);
  if (parts_.world.rank() == 0)
    log::warning("a save failed, and the run goes on ({} of at most {} in a row, checkpoint.max_failed): {}",
                 failed_in_a_row_, options_.checkpoint.max_failed, error.what());
}

void CheckpointHook::leave(const Error& error) {
  constexpr auto kPatience = std::chrono::seconds(5);
  if (saving_.valid() && saving_.wait_for(kPatience) == std::future_status::timeout) comm::end_all_ranks(error);
}

}  // namespace keel::checkpoints
