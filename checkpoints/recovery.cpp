#include "checkpoints/recovery.h"

#include <algorithm>
#include <filesystem>

#include "checkpoints/format.h"
#include "checkpoints/latest.h"
#include "framework/comm/agreement.h"
#include "framework/io/files.h"

namespace keel::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargest_bytes = uint64_t(16) << 20;

std::string file_in(const std::string& directory) {
  return directory + "/recovery.json";
}

int64_t step_at(const std::string& path) {
  return step_of(fs::path(path).filename());
}

}  // namespace

Recovery::Recovery(comm::Communicator& world, const std::string& directory, const config::StabilityConfig& options)
    : world_(world),
      directory_(directory),
      options_(options.rollback),
      fallbacks_(int64_t(options.fallbacks.size())),
      calm_steps_(options.calm_steps) {
  std::string text;
  comm::on_rank_0(world, [&] {
    if (fs::exists(file_in(directory))) text = io::read_file(file_in(directory), kLargest_bytes);
  });
  read(comm::broadcast_text(world, text));
}

void Recovery::read(const std::string& text) {
  if (text.empty()) return;
  try {
    const auto stored = nlohmann::json::parse(text);
    gone_back_to_ = stored.at("gone_back_to").get<std::vector<int64_t>>();
    fallbacks_taken_ = stored.at("fallbacks_taken").get<uint32_t>();
    last_trouble_ = stored.at("last_trouble").get<int64_t>();
    going_back_to_ = stored.value("going_back_to", kNowhere);
    for (const auto& range : stored.at("left_out"))
      left_out_.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
  } catch (const nlohmann::json::exception& error) {
    throw input_error("{}: not what Keel wrote there ({}): remove it, and rollbacks count anew", file_in(directory_),
                      error.what());
  }
}

std::string Recovery::text() const {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (const data::SampleRange& range : left_out_) ranges.push_back({range.begin, range.end});
  const nlohmann::ordered_json stored = {{"gone_back_to", gone_back_to_},
                                         {"fallbacks_taken", fallbacks_taken_},
                                         {"last_trouble", last_trouble_},
                                         {"going_back_to", going_back_to_},
                                         {"left_out", ranges}};
  return stored.dump(2) + "\n";
}

std::string Recovery::in_force() const {
  std::vector<std::string> parts;
  if (fallbacks_taken_ > 0) parts.push_back(fmt::format("fallback {} of stability.fallbacks", fallbacks_taken_));
  for (const data::SampleRange& range : left_out_)
    parts.push_back(fmt::format("samples {} to {} left out", range.begin, range.end - 1));
  if (parts.empty()) return "";
  return fmt::format("{} is in force: {} (remove that file to count anew)", file_in(directory_),
                     fmt::join(parts, ", "));
}

bool Recovery::calm_at(int64_t first_step) const {
  return first_step > last_trouble_ + calm_steps_;
}

bool Recovery::may_roll_back(int64_t first_step) const {
  if (options_.times == 0) return fallbacks_taken_ < fallbacks_;
  return calm_at(first_step) || int64_t(gone_back_to_.size()) < options_.times || fallbacks_taken_ < fallbacks_;
}

// Files before the trouble, oldest first, without those that were gone back to often enough; but the oldest stays,
// since a young run has nothing else.
std::vector<std::string> Recovery::candidates(int64_t first_step) const {
  std::vector<std::string> files = complete_files(directory_ + "/checkpoints");
  std::erase_if(files, [&](const std::string& path) { return step_at(path) >= first_step; });
  while (files.size() > 1 &&
         std::count(gone_back_to_.begin(), gone_back_to_.end(), step_at(files.back())) >= options_.per_checkpoint)
    files.pop_back();
  return files;
}

Rollback Recovery::roll_back(const train::TroubledSteps& troubled) {
  if (calm_at(troubled.first_step)) gone_back_to_.clear();
  Rollback rollback;
  rollback.next_fallback = int64_t(gone_back_to_.size()) >= options_.times;
  if (rollback.next_fallback) {
    ++fallbacks_taken_;
    gone_back_to_.clear();
  }
  if (world_.rank() == 0) rollback.files = candidates(troubled.first_step);
  if (!rollback.files.empty()) rollback.step = step_at(rollback.files.back());
  rollback.step = comm::all_reduce_value(world_, rollback.step);  // the other ranks add nothing
  gone_back_to_.push_back(rollback.step);
  going_back_to_ = rollback.step;
  rollback.count = int64_t(gone_back_to_.size());
  last_trouble_ = std::max(last_trouble_, troubled.last_step);
  if (options_.leave_out) {
    rollback.left_out = {troubled.first_sample, troubled.end_sample + options_.more_samples};
    left_out_.push_back(*rollback.left_out);
  }
  write();
  return rollback;
}

void Recovery::write() {
  comm::on_rank_0(world_, [&] { io::write_file(file_in(directory_), text()); });
}

std::optional<Rollback> Recovery::pending() {
  if (going_back_to_ == kNowhere) return std::nullopt;
  Rollback rollback{.step = going_back_to_, .count = int64_t(gone_back_to_.size())};
  if (world_.rank() != 0) return rollback;
  rollback.files = complete_files(directory_ + "/checkpoints");
  std::erase_if(rollback.files, [&](const std::string& path) { return step_at(path) > going_back_to_; });
  return rollback;
}

void Recovery::went_back() {
  if (std::exchange(going_back_to_, kNowhere) != kNowhere) write();
}

void Recovery::leave_out(data::SamplePosition& position) const {
  for (data::SampleRange range : left_out_) {
    range.begin = std::max(range.begin, position.next());
    if (range.begin < range.end) position.leave_out(range);
  }
}

}  // namespace keel::checkpoints
