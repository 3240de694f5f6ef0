#include "checkpoints/latest.h"

#include <algorithm>
#include <filesystem>

#include "checkpoints/agreement.h"
#include "checkpoints/format.h"
#include "checkpoints/user_block.h"
#include "framework/base/log.h"
#include "framework/io/files.h"

namespace keel::checkpoints {

namespace fs = std::filesystem;

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

void remove_leftovers(const std::string& directory) {
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(directory, absent)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".h5.writing")) continue;
    log::info("removing {}, left behind by a save that did not end", entry.path().string());
    fs::remove(entry.path(), absent);
  }
}

std::optional<std::string> find_latest(comm::Communicator& world, const std::string& directory) {
  std::string path;
  if (world.rank() == 0) {
    std::vector<std::string> files = complete_files(directory);
    for (; !files.empty() && path.empty(); files.pop_back()) try {
        verify_user_block(files.back());
        path = files.back();
      } catch (const Error& error) {
        log::warning("{}; trying the one before", error.what());
      }
  }
  path = comm::broadcast_text(world, path);
  if (path.empty()) return std::nullopt;
  return path;
}

void confirm_on_all_ranks(comm::Communicator& world, const std::string& path) {
  uint64_t size = 0;
  together(world, [&] {
    try {
      size = io::Descriptor(path, 0, "cannot open").size_bytes();
    } catch (const Error& error) {
      throw input_error("rank {}: {}; every rank must see the same files", world.rank(), error.what());
    }
  });
  comm::require_same(world, path, std::to_string(size));
}

}  // namespace keel::checkpoints
