// Where a rank stands: what it does and what it waits for. One thread says so, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "framework/base/clock.h"
#include "framework/comm/label.h"

namespace keel::comm {

inline constexpr double kLong_seconds = 0.25;  // a wait that is told of, should it never end
inline constexpr double kBriefly_seconds = 1;  // for what was started, where an exception passes

class Standing {
 public:
  // `phase` is a literal. Costs two stores.
  void at(int64_t step, const char* phase) noexcept {
    step_ = step;
    phase_ = phase;
  }
  // A wait that has taken a while already, and its end. Nothing is allocated for groups with short names.
  void waits_since(Clock::time_point begin, const Place& place, const Label& label);
  void goes_on();
  std::string text() const;

 private:
  std::atomic<int64_t> step_ = 0;
  std::atomic<const char*> phase_ = "starting";
  mutable std::mutex mutex_;
  bool waits_ = false;  // has done so for a while
  Place place_;
  Label label_;
  Clock::time_point begin_;
};

}  // namespace keel::comm
