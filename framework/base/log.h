// Lines for people, on standard error. Rank 0 speaks for all; the others speak only when something is wrong with them.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace keel::log {

enum class Level { info, warning, error };

// What this process may say.
struct Speaker {
  int rank = 0;
  Level least = Level::info;
};
void set_speaker(Speaker speaker);

// Writes one line. info comes from rank 0 only; warning and error from any rank, with the number of those
// that are not rank 0.
void write(Level level, std::string_view line);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace keel::log
