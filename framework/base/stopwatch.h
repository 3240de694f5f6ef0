#pragma once

#include <chrono>

namespace keel {

class Stopwatch {
 public:
  // Seconds since the last call, or since this was made.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace keel
