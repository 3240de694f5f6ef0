#include "framework/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

namespace keel {
namespace {

// Letters put in, left out, replaced, or swapped with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Takes a '+' in front away, which from_chars does not know; false where another sign follows.
bool without_plus(std::string_view& text) {
  if (!text.starts_with('+')) return true;
  text.remove_prefix(1);
  return !text.starts_with('-');
}

}  // namespace

std::string folded(std::string_view word) {
  std::string out;
  for (char c : word)
    if (c != '-' && c != '_') out += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return out;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best, target = folded(word);
  size_t least = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    std::string other = folded(candidate);
    size_t distance = edit_distance(target, other);
    if (distance < least && distance * 3 <= std::max(target.size(), other.size()) + 1) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view before) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("{}did you mean {}?", before, near);
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 5) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_count(double count) {
  const char* units[] = {"", "k", "M", "G", "T", "P"};
  int unit = 0;
  while (std::abs(count) >= 1000 && unit < 5) count /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f}", count)
                   : fmt::format("{:.{}f}{}", count,
                                 count < 10    ? 2
                                 : count < 100 ? 1
                                               : 0,
                                 units[unit]);
}

std::string human_seconds(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  auto s = int64_t(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}d{:02}h", s / 86400, s % 86400 / 3600);
}

bool parse_real(std::string_view text, double& value) {
  if (!without_plus(text)) return false;
  double parsed = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(parsed)) return false;
  value = parsed;
  return true;
}

bool parse_integer(std::string_view text, int64_t& value) {
  if (!without_plus(text)) return false;
  const std::string_view digits = text.substr(text.starts_with('-'));
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return false;
  int64_t parsed = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  value = parsed;
  return true;
}

}  // namespace keel
