#include "framework/comm/standing.h"

#include <fmt/format.h>

namespace keel::comm {

void Standing::waits_since(std::chrono::steady_clock::time_point begin, const std::string& what) {
  std::lock_guard lock(mutex_);
  begin_ = begin;
  wait_ = what;
}

void Standing::goes_on() {
  std::lock_guard lock(mutex_);
  wait_.clear();
}

std::string Standing::text() const {
  std::lock_guard lock(mutex_);
  const std::string place = fmt::format("step {}, {}", step_.load(), phase_.load());
  if (wait_.empty()) return place + ", waiting for no other rank";
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return fmt::format("{}, waiting for {:.1f} s: {}", place, seconds, wait_);
}

}  // namespace keel::comm
