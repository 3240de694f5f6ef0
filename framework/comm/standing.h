// Where a rank stands: what it does and what it waits for. One thread says so, any thread reads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace keel::comm {

class Standing {
 public:
  // `phase` is a literal. Costs two stores.
  void at(int64_t step, const char* phase) noexcept {
    step_ = step;
    phase_ = phase;
  }
  // A wait that has taken a while already, and its end.
  void waits_since(std::chrono::steady_clock::time_point begin, const std::string& what);
  void goes_on();
  std::string text() const;

 private:
  std::atomic<int64_t> step_ = 0;
  std::atomic<const char*> phase_ = "starting";
  mutable std::mutex mutex_;
  std::string wait_;  // empty: none that has taken a while
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace keel::comm
