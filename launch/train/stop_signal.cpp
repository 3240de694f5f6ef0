#include "launch/train/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

namespace keel {
namespace {

volatile std::sig_atomic_t signal_seen = 0;
volatile int64_t first_signal_ms = 0;

// Launchers may send one twice within a moment.
void on_signal(int) {
  constexpr std::string_view kLine = "keel: a second signal: stopped at once, without the last save\n";
  constexpr int64_t kMoment_ms = 1000;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
  if (!signal_seen) first_signal_ms = now_ms;
  if (signal_seen && now_ms - first_signal_ms >= kMoment_ms) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(1);
  }
  signal_seen = 1;
}

}  // namespace

void catch_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
}

bool signal_came() {
  return signal_seen != 0;
}

}  // namespace keel
