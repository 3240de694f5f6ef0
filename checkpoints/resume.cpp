#include "checkpoints/resume.h"

#include <filesystem>

#include "framework/base/log.h"
#include "framework/comm/agreement.h"

namespace keel::checkpoints {

namespace {

// What f makes of them is none of this program's doing either.
template <class F>
auto reading_hooks(const std::string& path, F f) {
  try {
    return f();
  } catch (const nlohmann::json::exception& error) {
    throw input_error("{}: run/hooks holds no states of detectors that this program knows ({}): made by something else",
                      path, error.what());
  }
}

}  // namespace

nlohmann::json hooks_of(const RunState& state, const std::string& path) {
  return reading_hooks(path, [&] {
    nlohmann::json hooks = nlohmann::json::parse(state.hooks);
    hooks.get_ref<const nlohmann::json::object_t&>();
    return hooks;
  });
}

bool Resume::is_own(const std::string& path) const {
  return comm::rank_0_sees(parts_.world, [&] { return lies_in(path, options_.directory); });
}

bool Resume::is_newest(const std::string& path) const {
  std::error_code absent;
  return comm::rank_0_sees(parts_.world, [&] {
    return std::filesystem::equivalent(complete_files(options_.directory).back(), path, absent);
  });
}

std::optional<std::string> Resume::find(const std::string& resume) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds() + kPatience_seconds);
  if (parts_.world.rank() == 0) remove_leftovers(options_.directory);
  if (resume == "auto") return find_latest(parts_.world, parts_.io, options_.directory, options_.time_limit_seconds());
  const bool own = comm::rank_0_sees(parts_.world, [&] { return !complete_files(options_.directory).empty(); });
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
  const auto latest = find_latest(parts_.world, parts_.io, options_.directory, options_.time_limit_seconds());
  if (goes_back && !(latest && went_on_from(resume, *latest))) return resume;
  log::info("this run {} {} and has checkpoints of its own since: the newest is gone on from",
            goes_back ? "went back to" : "began from", resume);
  return latest;
}

bool Resume::went_on_from(const std::string& resume, const std::string& path) const {
  bool same = false;
  comm::together(parts_.world, [&] {
    same = options_.compare(read_contents(parts_.io, path, options_.time_limit_seconds()).state).resume == resume;
  });
  return same;
}

std::optional<std::string> Resume::find(const Rollback& rollback, const std::string& resume) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds() + kPatience_seconds);
  if (const auto found = find_whole(parts_.world, parts_.io, rollback.files, options_.time_limit_seconds()))
    return found;
  if (parts_.world.rank() == 0) set_aside_after(options_.directory, 0);
  if (resume == "auto" || resume == "none" || is_own(resume)) return std::nullopt;
  return resume;
}

Resume::Loaded Resume::load(const std::string& path) {
  const comm::TimeLimit patience(parts_.world, options_.time_limit_seconds() + kPatience_seconds);
  parts_.world.stand_at(0, "loading");
  confirm_on_all_ranks(parts_.world, path);
  Loaded loaded{.own = is_own(path)};
  RunState stored;
  comm::together(parts_.world, [&] {
    stored = read_contents(parts_.io, path, options_.time_limit_seconds()).state;
    loaded.since = options_.compare(stored);
    data::check_fingerprint(stored.data_fingerprint, options_.data_fingerprint);
  });
  read_tensors(parts_.io, path, parts_.tensors(), options_.qk_norm, {options_.time_limit_seconds(), &parts_.world});
  comm::together(parts_.world, [&] {
    parts_.trainer.progress() = stored.progress;
    reading_hooks(path, [&] { parts_.trainer.restore_hooks(hooks_of(stored, path)); });
  });
  parts_.trainer.weights_changed();
  check_probe(stored.probe, loaded.since.probe_tolerance, path);
  if (parts_.world.rank() == 0) set_aside_after(options_.directory, parts_.trainer.progress().step);
  return loaded;
}

void Resume::check_probe(const train::Probe& stored, double tolerance, const std::string& path) {
  if (stored.empty() || parts_.probe.empty()) return;
  const double loss = train::probe_loss(parts_.model, stored);
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

}  // namespace keel::checkpoints
