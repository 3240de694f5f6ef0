#include "launch/ablation_run.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/data/token_bigram.h"

namespace keel {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What f throws, in words; "" where it throws nothing. Only what all ranks of the group fail of is a result of the
// cell: where one of them fails alone, the others cannot come here, and the error ends the program.
std::string failure_of(comm::World& group, const std::function<void()>& f) {
  std::string reason;
  try {
    f();
  } catch (const Error& error) {
    if (group.size() > 1 && error.kind() != ErrorKind::input) throw;
    reason = error.what();
  } catch (const std::exception& error) {
    if (group.size() > 1) throw;
    reason = error.what();
  }
  comm::TimeLimit limit(group.all(), 60);
  const int64_t first = comm::lowest_rank_where(group.all(), !reason.empty());
  return first == group.size() ? "" : comm::broadcast_text(group.all(), reason, int(first));
}

lab::CellResult failed(const std::string& reason) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  lab::CellResult result{.end = lab::CellEnd::failed, .reason = reason};
  for (double* value : {&result.first_loss, &result.valid_loss, &result.valid_nats_per_byte, &result.train_loss,
                        &result.bigram_loss, &result.largest_logit, &result.last_logit, &result.seconds_per_step,
                        &result.tokens_per_second, &result.memory_bytes})
    *value = kNone;
  return result;
}

std::string in_words(const lab::CellResult& result) {
  if (result.end == lab::CellEnd::failed) return "failed: " + result.reason;
  return fmt::format("held-out loss {:.4f}, largest logit {:.4g}{}{}", result.valid_loss, result.largest_logit,
                     result.lost.empty() ? "" : ", lost: " + result.lost,
                     result.end == lab::CellEnd::done ? "" : fmt::format(" (ended at step {})", result.steps));
}

}  // namespace

AblationRun::AblationRun(comm::World& world, const AblationCells& cells, AblationOptions options)
    : world_(world), cells_(cells), options_(std::move(options)) {}

int AblationRun::run() {
  if (world_.size() % options_.groups != 0)
    throw input_error("--groups {}: {} ranks do not divide into as many groups", options_.groups, world_.size());
  const int size = world_.size() / options_.groups, own = world_.rank() / size;
  comm::World group(world_, own);
  // As rank 0 sees the disk, so that all groups deal alike.
  const std::string waiting = world_.on_rank_0([&] {
    std::string text;
    for (size_t index : options_.cells) {
      if (lab::read_result(lab::cell_directory(cells_.directory, cells_.plan.cells[index])))
        remove_checkpoints(index);  // which a kill may have left
      else
        text += fmt::format("{} ", index);
    }
    return text;
  });
  std::istringstream numbers(waiting);
  size_t count = 0;
  for (size_t index; numbers >> index; ++count)
    if (int(count % size_t(options_.groups)) == own) own_.push_back(index);
  speaker_ = group.rank() == 0;
  live_ = speaker_ && options_.groups == 1 && isatty(STDERR_FILENO) == 1;
  log::info("{}: {} of {} cells to run, {} at a time on {} ranks each", cells_.plan.name, count, options_.cells.size(),
            options_.groups, size);

  bool stopped = false;
  log::set_speaker({.rank = world_.rank(), .least = log::Level::warning});
  for (; done_ < own_.size() && !stopped; done_ += !stopped) stopped = run_cell(group, own_[done_]);
  log::set_speaker({.rank = world_.rank()});
  return int(comm::all_reduce_value(world_.all(), int64_t(stopped ? 4 : 0), comm::Reduction::max));
}

// Whether it was stopped before it ended.
bool AblationRun::run_cell(comm::World& parent, size_t index) {
  const FullConfig& config = cells_.configs[index];
  comm::World group(parent, 0);  // its own for each cell, so that nothing of one reaches the next
  bool stopped = false;
  lab::CellResult result;
  const std::string reason =
      failure_of(group, [&] { result = train(group, config, bigram_loss(group, config), stopped); });
  if (stopped) return true;
  keep_result(group, index, reason.empty() ? result : failed(reason));
  return false;
}

lab::CellResult AblationRun::train(comm::World& group, const FullConfig& config, double bigram_loss, bool& stopped) {
  FullConfig timed = config;
  const double left = seconds_left(group);
  stopped = options_.limit_seconds > 0 && left <= 0;
  if (stopped) return {};
  if (options_.limit_seconds > 0)
    timed.run.train.stop_after = std::chrono::seconds(std::max<int64_t>(1, int64_t(left)));
  RunAdditions additions{.quiet = true, .lost_above = std::nullopt, .watch = {}};
  if (cells_.plan.stop_lost) additions.lost_above = bigram_loss;
  const lab::Cell& cell = cells_.plan.cells[own_[done_]];
  if (live_) additions.watch = [&](const train::StepReport& report) { show_step(cell, config, report); };
  const RunEnding ending = run_training(group, timed, additions);
  stopped = ending.exit_code == 4;
  if (stopped || group.rank() != 0) return {};
  io::IoThread io;
  lab::CellResult result = lab::judge(lab::read_run(io, lab::cell_directory(cells_.directory, cell)), bigram_loss,
                                      config.run.precision == config::Precision::bf16);
  result.reason = ending.reason;
  if (ending.exit_code == 3)
    result.end = ending.reason.starts_with("lost at ") ? lab::CellEnd::lost : lab::CellEnd::unstable;
  return result;
}

double AblationRun::bigram_loss(comm::World& group, const FullConfig& config) {
  const int64_t sequences = config.run.eval.sequences.value_or(0);
  const std::string key = config::print(config::to_node(config.run.data)) + std::to_string(sequences);
  const auto known = bigram_losses_.find(key);
  if (known != bigram_losses_.end()) return known->second;
  const std::string text = group.on_rank_0([&] {
    return fmt::format("{}", data::bigram_loss(open_training_data(config), open_validation_data(config), sequences));
  });
  return bigram_losses_[key] = std::stod(text);
}

double AblationRun::seconds_left(comm::World& group) const {
  return comm::all_reduce_value(group.all(), options_.limit_seconds - seconds_since(begin_), comm::Reduction::max);
}

// The file comes last: before it, a cell that is started again goes on from its checkpoint.
void AblationRun::keep_result(comm::World& group, size_t index, const lab::CellResult& result) {
  const lab::Cell& cell = cells_.plan.cells[index];
  const std::string folder = lab::cell_directory(cells_.directory, cell);
  group.on_rank_0([&] {
    io::create_directories(folder);
    io::write_file(folder + "/result.json", lab::to_json(result).dump(2) + "\n");
    remove_checkpoints(index);
    io::IoThread io;
    lab::write_tables(io, cells_.directory, cells_.plan);
    return std::string();
  });
  say(fmt::format("cell {}/{} {}: {}  ETA {}", done_ + 1, own_.size(), cell.name, in_words(result), eta(1)));
}

// Of a finished cell, which goes on from them no more.
void AblationRun::remove_checkpoints(size_t index) const {
  if (cells_.configs[index].run.checkpoint.final) return;
  std::filesystem::remove_all(lab::cell_directory(cells_.directory, cells_.plan.cells[index]) + "/checkpoints");
}

void AblationRun::show_step(const lab::Cell& cell, const FullConfig& config, const train::StepReport& report) {
  const int64_t steps = config.run.total_steps();
  const std::string text = fmt::format("\r\033[Kcell {}/{} {}: step {}/{}  loss {:.4f}  max logit {:.4g}  ETA {}",
                                       done_ + 1, own_.size(), cell.name, report.step, steps, report.loss,
                                       report.largest(), eta(double(report.step) / double(steps)));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void AblationRun::say(const std::string& line) {
  if (!speaker_) return;
  if (live_) std::fputs("\r\033[K", stderr);
  log::set_speaker({});
  log::info("{}", line);
  log::set_speaker({.rank = world_.rank(), .least = log::Level::warning});
}

// For the rest of this group's cells, from what this start has done so far.
std::string AblationRun::eta(double part_of_cell) const {
  const double done = double(done_) + part_of_cell;
  return human_seconds(seconds_since(begin_) / done * (double(own_.size()) - done));
}

}  // namespace keel
