#include "framework/comm/standing.h"

#include <fmt/format.h>

namespace keel::comm {

void Standing::waits_since(Clock::time_point begin, const Place& place, const Label& label) {
  std::lock_guard lock(mutex_);
  waits_ = true;
  begin_ = begin;
  place_ = place;
  label_ = label;
}

void Standing::goes_on() {
  std::lock_guard lock(mutex_);
  waits_ = false;
}

std::string Standing::text() const {
  std::lock_guard lock(mutex_);
  const std::string place = fmt::format("step {}, {}", step_.load(), phase_.load());
  if (!waits_) return place + ", waiting for no other rank";
  const double seconds = seconds_since(begin_);
  return fmt::format("{}, waiting for {:.1f} s: {}", place, seconds, comm::text(place_, label_));
}

}  // namespace keel::comm
