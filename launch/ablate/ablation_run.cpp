#include "launch/ablate/ablation_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "checkpoints/recovery.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/data/token_bigram.h"
#include "launch/train/prepared_run.h"

namespace keel {
namespace {

// By the first rank that fails, on its own: others may stand in a collective that it will not come to. What they tell
// later, that it has gone, is no reason.
void keep_failure(const std::string& folder, const std::string& reason) noexcept {
  try {
    if (!std::filesystem::exists(lab::failure_path(folder))) lab::write_failure(folder, reason);
  } catch (const std::exception& error) {
    log::warning("{}: why it failed could not be kept: {}", folder, error.what());
  }
}

// What f throws, in words; "" where it throws nothing. The program goes on where all ranks of the group have failed:
// where one of them fails alone, the others cannot come here, and the error ends the program. The cell's folder has the
// reason then, and the next start begins with others.
std::string failure_of(comm::World& group, const std::string& folder, const std::function<void()>& f) {
  std::string reason;
  try {
    f();
  } catch (const std::exception& error) {
    reason = error.what();
    keep_failure(folder, reason);
    const auto* known = dynamic_cast<const Error*>(&error);
    if (group.size() > 1 && !(known && known->kind() == ErrorKind::input)) throw;
  }
  comm::TimeLimit limit(group.all(), 60);
  const int64_t first = comm::lowest_rank_where(group.all(), !reason.empty());
  return first == group.size() ? "" : comm::broadcast_text(group.all(), reason, int(first));
}

std::string in_words(const lab::CellResult& result) {
  return fmt::format("held-out loss {:.4f}, largest logit {:.4g}{}{}", result.valid_loss, result.largest_logit,
                     result.lost.empty() ? "" : ", lost: " + result.lost,
                     result.end == lab::CellEnd::done ? "" : fmt::format(" (ended at step {})", result.steps));
}

}  // namespace

AblationRun::AblationRun(comm::World& world, const AblationCells& cells, AblationOptions options)
    : world_(world), cells_(cells), options_(std::move(options)) {
  for (size_t index : options_.cells) old_failures_[index] = failed_at(index);
  // Those that failed come last: one that ends the program would else keep it from all others, however often it starts.
  std::ranges::stable_partition(options_.cells, [this](size_t index) { return !old_failures_.at(index); });
}

int AblationRun::run() {
  const int size = world_.size() / options_.groups;
  comm::World group(world_, world_.rank() / size);
  // Groups end at their own times, and sleep until the last.
  const auto ends = world_.another("groups");
  ends->set_time_limit(0);
  speaker_ = group.rank() == 0;
  live_ = speaker_ && options_.groups == 1 && isatty(STDERR_FILENO) == 1;
  const auto finished = [this](size_t index) { return is_finished(index); };
  log::info("{}: {} of {} cells finished, {} at a time on {} ranks each", cells_.plan.name,
            std::ranges::count_if(options_.cells, finished), options_.cells.size(), options_.groups, size);

  log::set_speaker({.rank = world_.rank(), .least = log::Level::warning});
  Attempt worst = Attempt::finished;
  while (worst != Attempt::stopped) {
    const std::string claimed = group.on_rank_0([this] { return claim(); });
    if (claimed.empty()) break;
    worst = std::max(worst, run_cell(group, std::stoull(claimed)));
    ++done_;
    lock_.reset();
  }
  log::set_speaker({.rank = world_.rank()});
  return int(comm::all_reduce_value(*ends, int64_t(worst), comm::Reduction::max));
}

// The next cell that nobody has, now locked; "" where there is none. Another process may have ended it just before, so
// it is looked at again under the lock.
std::string AblationRun::claim() {
  using Beside = io::RunLock::Beside;
  waiting_ = size_t(std::ranges::count_if(options_.cells, [this](size_t index) { return is_waiting(index); }));
  for (size_t index : options_.cells) {
    if (is_finished(index)) remove_checkpoints(index);  // which a kill may have left
    if (!is_waiting(index)) continue;
    io::create_directories(folder_of(index));
    auto lock = io::RunLock::try_take(folder_of(index), options_.alone ? Beside::nobody : Beside::others);
    if (!lock || !is_waiting(index)) continue;
    std::filesystem::remove(lab::failure_path(folder_of(index)));
    lock_.emplace(std::move(*lock));
    return std::to_string(index);
  }
  return "";
}

bool AblationRun::is_finished(size_t index) const {
  return std::filesystem::exists(lab::result_path(folder_of(index)));
}

// Without a result, and not failed since this began.
bool AblationRun::is_waiting(size_t index) const {
  const auto failed = failed_at(index);
  return !is_finished(index) && (!failed || failed == old_failures_.at(index));
}

std::optional<std::filesystem::file_time_type> AblationRun::failed_at(size_t index) const {
  std::error_code absent;
  const auto time = std::filesystem::last_write_time(lab::failure_path(folder_of(index)), absent);
  return absent ? std::nullopt : std::optional(time);
}

std::string AblationRun::folder_of(size_t index) const {
  return lab::cell_directory(cells_.directory, cells_.plan.cells[index]);
}

// Files come last: before them, a cell that is started again goes on from its checkpoint.
Attempt AblationRun::run_cell(comm::World& parent, size_t index) {
  comm::World group(parent, 0);  // its own for each cell, so that nothing of one reaches the next
  std::optional<lab::CellResult> result;
  const std::string failure = failure_of(group, folder_of(index), [&] { result = train(group, index); });
  if (failure.empty() && !result) return Attempt::stopped;
  group.do_on_rank_0([&] {
    if (failure.empty()) {
      lab::write_result(folder_of(index), *result);
      remove_checkpoints(index);
    } else {
      lab::write_failure(folder_of(index), failure);
    }
  });
  say(fmt::format("{}: {}  ETA {}", name_of(index), failure.empty() ? in_words(*result) : "failed: " + failure,
                  eta(1)));
  return failure.empty() ? Attempt::finished : Attempt::failed;
}

// Rank 0 has the numbers. Nothing, on every rank, where it was stopped before its end.
std::optional<lab::CellResult> AblationRun::train(comm::World& group, size_t index) {
  FullConfig config = cells_.configs[index];
  const double bigram_loss = this->bigram_loss(group, config), left = seconds_left(group);
  if (options_.limit_seconds > 0 && left <= 0) return std::nullopt;
  if (options_.limit_seconds > 0)
    config.run.train.stop_after = std::chrono::seconds(std::max<int64_t>(1, int64_t(left)));
  RunAdditions additions{.quiet = true, .claimed = true, .lost_above = std::nullopt, .watch = {}};
  if (cells_.plan.stop_lost) additions.lost_above = bigram_loss;
  if (live_) additions.watch = [&](const train::StepReport& report) { show_step(index, report); };
  const train::Ending ending = run_training(group, config, additions);
  if (ending.outcome == train::Outcome::saved_early) return std::nullopt;
  // Not by its events: a kill can come between a fallback and the event that tells of it.
  const int64_t fallbacks =
      checkpoints::Recovery(group.all(), directory_of(config.run), config.run.stability).fallbacks_taken();
  if (group.rank() != 0) return lab::CellResult();
  io::IoThread io;
  lab::CellResult result =
      lab::judge(lab::read_run(io, folder_of(index)), bigram_loss, config.run.precision == config::Precision::bf16);
  result.reason = ending.reason;
  result.fallbacks = fallbacks;
  if (ending.outcome == train::Outcome::unstable)
    result.end = ending.lost ? lab::CellEnd::lost : lab::CellEnd::unstable;
  return result;
}

double AblationRun::bigram_loss(comm::World& group, const FullConfig& config) {
  const int64_t sequences = config.run.eval.sequences.value_or(0);
  const std::string key =
      fmt::format("{}{} {}", config::print(config::to_node(config.run.data)), sequences, config.model.vocab.value());
  const auto known = bigram_losses_.find(key);
  if (known != bigram_losses_.end()) return known->second;
  double loss = 0;
  const comm::TimeLimit as_long_as_it_takes(group.all(), 0);
  group.do_on_rank_0(
      [&] { loss = data::bigram_loss(open_training_data(config), open_validation_data(config), sequences); });
  group.all().broadcast(Tensor(&loss, {1}, DType::f64), 0);
  return bigram_losses_[key] = loss;
}

double AblationRun::seconds_left(comm::World& group) const {
  return comm::all_reduce_value(group.all(), options_.limit_seconds - seconds_since(begin_), comm::Reduction::max);
}

// Of a finished cell, which goes on from them no more.
void AblationRun::remove_checkpoints(size_t index) const {
  std::error_code ignored;  // another process may do the same
  if (!cells_.configs[index].run.checkpoint.final)
    std::filesystem::remove_all(folder_of(index) + "/checkpoints", ignored);
}

void AblationRun::show_step(size_t index, const train::StepReport& report) {
  const int64_t steps = cells_.configs[index].run.total_steps();
  const std::string text =
      fmt::format("\r\033[K{}: step {}/{}  loss {:.4f}  max logit {:.4g}  ETA {}", name_of(index), report.step, steps,
                  report.loss, report.largest(), eta(double(report.step) / double(steps)));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void AblationRun::say(const std::string& line) {
  if (!speaker_) return;
  if (live_) std::fputs("\r\033[K", stderr);
  log::set_speaker({});
  log::info("{}", line);
  log::set_speaker({.rank = world_.rank(), .least = log::Level::warning});
}

std::string AblationRun::name_of(size_t index) const {
  return fmt::format("cell {}/{} {}", index + 1, cells_.plan.cells.size(), cells_.plan.cells[index].name);
}

// For the cells that wait, by how long this group's have taken, as if no other process helped.
std::string AblationRun::eta(double part_of_cell) const {
  const double each = seconds_since(begin_) / (double(done_) + part_of_cell);
  return human_seconds(each * (double(waiting_) - part_of_cell) / options_.groups);
}

}  // namespace keel
