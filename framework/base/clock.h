// Seconds by a clock that never goes back.
#pragma once

#include <chrono>

namespace keel {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Stopwatch {
 public:
  // Seconds since the last call, or since this was made.
  double lap() {
    const double seconds = seconds_since(last_);
    last_ = Clock::now();
    return seconds;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

}  // namespace keel
