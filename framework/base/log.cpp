#include "framework/base/log.h"

#include <cstdio>
#include <mutex>
#include <string>

namespace keel::log {
namespace {

std::mutex mutex;
Speaker speaker;

std::string_view prefix(Level level) {
  switch (level) {
    case Level::warning:
      return "warning: ";
    case Level::error:
      return "error: ";
    default:
      return "";
  }
}

}  // namespace

void set_speaker(Speaker next) {
  std::lock_guard lock(mutex);
  speaker = next;
}

void write(Level level, std::string_view line) {
  std::lock_guard lock(mutex);
  if (level < speaker.least) return;
  if (level < Level::warning && speaker.rank != 0) return;
  // Rank 0 speaks for all; where another rank speaks, which one matters.
  std::string text = speaker.rank > 0 ? fmt::format("keel: rank {}: {}{}\n", speaker.rank, prefix(level), line)
                                      : fmt::format("keel: {}{}\n", prefix(level), line);
  std::fwrite(text.data(), 1, text.size(), stderr);  // one write, so that lines of several ranks do not mix
}

}  // namespace keel::log
