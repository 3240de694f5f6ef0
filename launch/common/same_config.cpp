#include "launch/common/same_config.h"

#include <unistd.h>

#include <filesystem>

#include "framework/io/files.h"

namespace keel {
namespace {

// "" where this rank can read no such file, or only once, as from a pipe.
std::string checksum_of(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || ::access(path.c_str(), R_OK) != 0) return {};
  return std::to_string(io::crc32c_of_file(path, uint64_t(1) << 30));
}

}  // namespace

void require_same_config(comm::World& world, const std::string& path) {
  const std::string first = world.on_rank_0([&] { return checksum_of(path); }), mine = checksum_of(path);
  comm::require_same(world.all(), path, first.empty() || mine.empty() ? first : mine);
}

}  // namespace keel
