// Where golden files lie: KEEL_GOLDEN_DIR of the environment, for binaries that were carried to another machine, or the
// source tree's folder.
#pragma once

#include <cstdlib>
#include <string>

namespace keel::testing {

inline std::string golden_file(const std::string& name) {
  const char* moved = std::getenv("KEEL_GOLDEN_DIR");
  return std::string(moved ? moved : KEEL_GOLDEN_DIR) + "/" + name;
}

}  // namespace keel::testing
