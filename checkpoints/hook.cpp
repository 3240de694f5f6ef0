#include "checkpoints/hook.h"

#include <chrono>
#include <filesystem>

#include "checkpoints/agreement.h"
#include "framework/base/clock.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/base/trace.h"
#include "framework/io/files.h"

namespace keel::checkpoints {

LocalTensors CheckpointHook::tensors() const {
  return {.parameters = parts_.model.parameters(),
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

bool CheckpointHook::is_newest(const std::string& path) const {
  std::error_code absent;
  const bool here =
      parts_.world.rank() == 0 && std::filesystem::equivalent(complete_files(options_.directory).back(), path, absent);
  return comm::all_reduce_value(parts_.world, int64_t(here), comm::Reduction::max) != 0;
}

std::optional<std::string> CheckpointHook::find(const std::string& resume) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds + kPatience_seconds);
  if (parts_.world.rank() == 0) remove_leftovers(options_.directory);
  if (resume == "auto") return find_latest(parts_.world, parts_.io, options_.directory, options_.time_limit_seconds);
  const bool own = has_own();
  if (resume == "none") {
    if (!own) return std::nullopt;
    throw input_error(
        "checkpoint.resume is none, but {} holds checkpoints: give another name, or remove them and "
        "the run's recovery.json",
        options_.directory);
  }
  if (!own) return resume;
  const bool goes_back = is_own(resume);
  if (goes_back && is_newest(resume)) return resume;
  const auto latest = find_latest(parts_.world, parts_.io, options_.directory, options_.time_limit_seconds);
  if (goes_back && !(latest && went_on_from(resume, *latest))) return resume;
  log::info("this run {} {} and has checkpoints of its own since: the newest is gone on from",
            goes_back ? "went back to" : "began from", resume);
  return latest;
}

bool CheckpointHook::went_on_from(const std::string& resume, const std::string& path) {
  bool same = false;
  together(parts_.world, [&] {
    const RunState state = read_contents(parts_.io, path, options_.time_limit_seconds).state;
    same = options_.resume_of && options_.resume_of(state.config) == resume;
  });
  return same;
}

std::optional<std::string> CheckpointHook::find(const Rollback& rollback, const std::string& resume) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds + kPatience_seconds);
  if (const auto found = find_whole(parts_.world, parts_.io, rollback.files, options_.time_limit_seconds)) return found;
  if (parts_.world.rank() == 0) set_aside_after(options_.directory, 0);
  if (resume == "auto" || resume == "none" || is_own(resume)) return std::nullopt;
  return resume;
}

CheckpointHook::Changes CheckpointHook::load(const std::string& path) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds + kPatience_seconds);
  parts_.world.stand_at(0, "loading");
  confirm_on_all_ranks(parts_.world, path);
  Changes changes;
  RunState stored;
  together(parts_.world, [&] {
    const Contents contents = read_contents(parts_.io, path, options_.time_limit_seconds);
    stored = contents.state;
    changes.config = options_.compare_configs(contents.state.config);
    if (options_.compare_environments) changes.environment = options_.compare_environments(contents.state.environment);
    data::check_fingerprint(contents.state.data_fingerprint, options_.data_fingerprint);
    read_tensors(parts_.io, path, tensors(), options_.qk_norm, options_.time_limit_seconds);
    parts_.trainer.progress() = contents.state.progress;
    parts_.trainer.restore_hooks(nlohmann::json::parse(contents.state.hooks));
  });
  parts_.trainer.weights_changed();
  check_probe(stored, path);
  const int64_t step = parts_.trainer.progress().step;
  if (is_own(path)) saved_step_ = step, saved_whole_ = true;
  if (parts_.world.rank() == 0) set_aside_after(options_.directory, step);
  return changes;
}

void CheckpointHook::check_probe(const RunState& state, const std::string& path) {
  const train::Probe& stored = state.probe;
  if (stored.empty() || parts_.probe.empty()) return;
  const double loss = train::probe_loss(parts_.model, stored);
  const double tolerance = options_.probe_tolerance ? options_.probe_tolerance(state.config) : 1e-4;
  const bool both_blown = !std::isfinite(loss) && !std::isfinite(stored.loss);
  const bool same = both_blown || std::abs(loss - stored.loss) <= tolerance * std::abs(stored.loss);
  const int64_t rank = comm::lowest_rank_where(parts_.world, !same);
  if (rank == parts_.world.size()) return;
  throw input_error(
      "{}: the loaded weights give the loss {:.6f} on the {} tokens stored with them, and gave {:.6f} when they were "
      "saved (rank {}): this program, its libraries or this machine compute something else",
      path, comm::all_reduce_value(parts_.world, rank == parts_.world.rank() ? loss : 0.0), stored.tokens.size(),
      stored.loss, rank);
}

void CheckpointHook::start(const train::Progress&) {
  if (!options_.background || options_.every == 0) return;
  LocalTensors saved = tensors();
  saved.weights_only = options_.weights_only;
  snapshot_.take(saved);
}

train::Verdict CheckpointHook::after_step(const train::StepReport& report, const train::Verdict& verdict,
                                          const train::Progress& progress) {
  if (saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) collect();
  // The weights of a skipped step are those before it, but its successor is not known to be sound: wait for a good
  // step.
  due_ |= options_.every > 0 && report.step % options_.every == 0;
  if (due_ && verdict.action == train::Action::proceed) {
    wait_for_save();  // one at a time
    start_save(progress, options_.background);
    if (!options_.background) wait_for_save();
  }
  return {};
}

// A run that stopped on instability, or goes back, keeps its last good file; one that was stopped early is saved
// whatever `final` says, or its work would be lost.
void CheckpointHook::finish(const train::Progress& progress, const train::Ending& ending) {
  const bool sound = ending.outcome == train::Outcome::done || ending.outcome == train::Outcome::saved_early;
  const bool goes_on = ending.outcome == train::Outcome::saved_early;
  const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options_.final_save_limit_seconds));
  const auto deadline = sound ? Clock::now() + limit : Clock::time_point::max();  // nobody ends a slot of the others
  wait_for_save(deadline);
  if (!sound || !(options_.final || goes_on) || (saved_step_ == progress.step && (saved_whole_ || !goes_on))) return;
  options_.max_failed = 1;
  if (goes_on) options_.weights_only = false;
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
                 .weights_only = options_.weights_only};
  if (!state.probe.empty()) state.probe.loss = train::probe_loss(parts_.model, state.probe);
  return state;
}

// Not copied: the caller waits for the save. What lies on a GPU is always copied.
void CheckpointHook::start_save(const train::Progress& progress, bool copied) {
  const Span span("copy of the state", progress.step);
  if (options_.before_save) options_.before_save();
  const auto begin = Clock::now();
  LocalTensors tensors = this->tensors();
  tensors.weights_only = options_.weights_only;
  if (copied || tensors.parameters.device().kind == DeviceKind::cuda) {
    snapshot_.take(tensors);
    tensors.snapshot = &snapshot_;
  }
  saving_ =
      std::async(std::launch::async, [this, tensors, state = state_at(progress)] { return save(tensors, state); });
  due_ = false;
  stalled_seconds_ = seconds_since(begin);
}

// Where the ranks that save no longer hear each other, some see a failed save and others none, and there will be no
// further one: that is no failed save, but the end.
CheckpointHook::Saved CheckpointHook::save(const LocalTensors& tensors, const RunState& state) {
  const Span span("save", state.progress.step);
  trace::name_thread("saving");
  try {
    return save_in_steps(tensors, state);
  } catch (const Error& error) {
    if (parts_.saves.broken()) comm::end_all_ranks(error);
    throw;
  }
}

CheckpointHook::Saved CheckpointHook::save_in_steps(const LocalTensors& tensors, const RunState& state) {
  const auto begin = Clock::now();
  comm::Communicator& saves = parts_.saves;
  saves.stand_at(state.progress.step, "saving");
  const comm::TimeLimit patience(saves, options_.time_limit_seconds + kPatience_seconds);
  const auto on_rank_0 = [&](const std::string& doing, const std::function<void()>& f) {
    together(saves, [&] {
      if (saves.rank() == 0) run_within(options_.time_limit_seconds, parts_.io, doing, [&](io::IoContext&) { f(); });
    });
  };
  Saved saved{.path = options_.directory + "/" + file_name(state.progress.step),
              .step = state.progress.step,
              .whole = !state.weights_only};
  on_rank_0("creating " + options_.directory, [&] { io::create_directories(options_.directory); });
  saved.bytes = write_checkpoint(saves, parts_.io, tensors, state,
                                 {.path = saved.path,
                                  .io_comm = parts_.io_comm,
                                  .mpi_hints = options_.mpi_hints,
                                  .parts = options_.parts,
                                  .io_limit_seconds = options_.time_limit_seconds});
  // All ranks wait, or those that do not would be in the next step's exchanges while rank 0 still removes files.
  on_rank_0("removing old checkpoints from " + options_.directory,
            [&] { remove_old(options_.directory, saved.step, options_.retention); });
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
                            options_.final_save_limit_seconds, options_.directory)));
    if (seconds_since(begin) < next_line_seconds) continue;
    log::info(
        "training waits for a save to end, for {:.0f} s so far (a disk that does not answer within {:.0f} s ends "
        "the run: checkpoint.time_limit)",
        seconds_since(begin), options_.time_limit_seconds);
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
    saved_whole_ = saved.whole;
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
  if (failed_in_a_row_ >= options_.max_failed) throw in_mid_run(error);
  if (parts_.world.rank() == 0)
    log::warning("a save failed, and the run goes on ({} of at most {} in a row, checkpoint.max_failed): {}",
                 failed_in_a_row_, options_.max_failed, error.what());
}

void CheckpointHook::leave(const Error& error) {
  constexpr auto kPatience = std::chrono::seconds(5);
  if (saving_.valid() && saving_.wait_for(kPatience) == std::future_status::timeout) comm::end_all_ranks(error);
}

}  // namespace keel::checkpoints
