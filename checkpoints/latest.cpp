#include "checkpoints/latest.h"

#include <algorithm>
#include <filesystem>

#include "checkpoints/format.h"
#include "checkpoints/parts.h"
#include "checkpoints/reader.h"
#include "checkpoints/user_block.h"
#include "framework/base/log.h"
#include "framework/comm/agreement.h"

namespace keel::checkpoints {

namespace fs = std::filesystem;

constexpr const char* kSetAside = ".set-aside";

std::vector<std::string> complete_files(const std::string& directory) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(directory, absent))
    if (const int64_t step = step_of(entry.path().filename()); step >= 0) found.emplace_back(step, entry.path());
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(path);
  return paths;
}

bool lies_in(const std::string& path, const std::string& directory) {
  std::error_code failed;
  const fs::path file = fs::weakly_canonical(fs::absolute(path), failed);
  return !failed && file.parent_path() == fs::weakly_canonical(fs::absolute(directory), failed) && !failed;
}

namespace {

// A part whose linking file is not there, and was not set aside just before the part's turn.
bool orphan(const fs::path& path) {
  const std::string linking = linked_by(path.filename());
  if (step_of(linking) < 0 || fs::exists(path.parent_path() / linking)) return false;
  const auto aside = [&](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with(linking + kSetAside);
  };
  return std::ranges::none_of(fs::directory_iterator(path.parent_path()), aside);
}

// What a file that is set aside is called: .set-aside, or with a number where a file of that name has been before.
std::string aside_suffix(const std::string& path) {
  std::string suffix = kSetAside;
  for (int number = 2; fs::exists(path + suffix); ++number) suffix = fmt::format("{}-{}", kSetAside, number);
  return suffix;
}

// The file and its parts. The file itself comes first: without it the parts are nobody's.
std::vector<std::string> whole_checkpoint(const std::string& path) {
  std::vector<std::string> files = parts_of(path);
  files.insert(files.begin(), path);
  return files;
}

}  // namespace

void remove_leftovers(const std::string& directory) {
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(directory, absent)) {
    const std::string path = entry.path();
    // MPI-IO puts files of its own beside the one that it writes: NAME.locktest.0.
    const bool writing = entry.path().filename().string().find(".h5.writing") != std::string::npos;
    if (!writing && !orphan(path)) continue;
    std::error_code failed;
    if (fs::remove(path, failed))
      log::info("removed {}, left behind by a save that did not end", path);
    else
      log::warning("cannot remove {}, left behind by a save that did not end: {}", path, failed.message());
  }
}

void remove_old(const std::string& directory, int64_t step, const config::CheckpointConfig& options,
                int64_t whole_step) {
  std::vector<std::string> files = complete_files(directory);
  auto step_at = [](const std::string& path) { return step_of(fs::path(path).filename()); };
  std::erase_if(files, [&](const std::string& path) { return step_at(path) > step; });
  files.resize(files.size() - std::min(files.size(), size_t(options.keep)));
  std::erase_if(files, [&](const std::string& path) {
    return step_at(path) == whole_step || (options.keep_every && step_at(path) % *options.keep_every == 0);
  });
  for (size_t i = 0; i < files.size(); ++i)
    for (const std::string& file : whole_checkpoint(files[i])) {
      std::error_code failed;
      if (!fs::remove(file, failed)) log::warning("cannot remove the old {}: {}", file, failed.message());
    }
}

void set_aside_after(const std::string& directory, int64_t step) {
  for (const std::string& path : complete_files(directory)) {
    if (step_of(fs::path(path).filename()) <= step) continue;
    std::error_code failed;
    const std::string suffix = aside_suffix(path);
    for (const std::string& file : whole_checkpoint(path))
      if (!failed) fs::rename(file, file + suffix, failed);
    log::warning("{} lies after step {}, where this run goes on: {}", path, step,
                 failed ? "it cannot be renamed (" + failed.message() + ")" : "it is now called *" + suffix);
  }
}

std::optional<std::string> find_whole(comm::Communicator& world, io::IoThread& io,
                                      const std::vector<std::string>& files, double limit_seconds) {
  const int64_t count = comm::all_reduce_value(world, int64_t(world.rank() == 0 ? files.size() : 0));
  std::string path, weights;
  for (int64_t left = count; left > 0; --left) {
    path = comm::broadcast_text(world, world.rank() == 0 ? files[size_t(left - 1)] : "");
    confirm_on_all_ranks(world, path);
    try {
      bool whole = false;
      comm::together(world, [&] { whole = !read_contents(io, path, limit_seconds).state.weights_only; });
      if (whole) verify_tensors(io, path, [](double) {}, {world.rank(), world.size()}, {limit_seconds, &world});
      if (whole) return path;
      log::warning("{} holds weights only, which no run goes on from; trying the one before", path);
      if (weights.empty()) weights = path;
    } catch (const Error& error) {
      log::warning("{}; trying the one before", error.what());
    }
  }
  if (!weights.empty()) return weights;  // loading says what is missing
  if (count > 0)
    throw input_error(
        "{}: none of its {} checkpoints is whole: restore one, or remove them and the "
        "run's recovery.json to start anew",
        fs::path(path).parent_path().string(), count);
  return std::nullopt;
}

std::optional<std::string> find_latest(comm::Communicator& world, io::IoThread& io, const std::string& directory,
                                       double limit_seconds) {
  const auto files = world.rank() == 0 ? complete_files(directory) : std::vector<std::string>();
  return find_whole(world, io, files, limit_seconds);
}

void confirm_on_all_ranks(comm::Communicator& world, const std::string& path) {
  std::string header;
  comm::together(world, [&] {
    comm::naming_rank(world, "; every rank must see the same files", [&] { header = header_bytes(path); });
  });
  comm::require_same(world, path, header);
}

}  // namespace keel::checkpoints
