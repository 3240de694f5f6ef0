#include "framework/lab/events.h"

#include <algorithm>

namespace keel::lab {

const std::map<std::string, int>& severities() {
  static const std::map<std::string, int> kSeverities = {
      {"saved", 0},     {"memory", 0},   {"config_changed", 0}, {"environment_changed", 0}, {"spike_score", 0},
      {"start", 1},     {"resume", 1},   {"skip", 2},           {"save_failed", 3},         {"lower_lr", 3},
      {"roll_back", 4}, {"fallback", 4}, {"rolled_back", 4},    {"stop_unstable", 5}};
  return kSeverities;
}

int severity(const io::Json& event) {
  const auto found = severities().find(event.value("event", ""));
  return found == severities().end() ? 2 : found->second;
}

std::vector<const io::Json*> shown_events(const RunRecord& run, size_t most) {
  std::vector<const io::Json*> shown;
  for (const io::Json& event : run.events)
    if (severity(event) > 0) shown.push_back(&event);
  std::reverse(shown.begin(), shown.end());
  std::stable_sort(shown.begin(), shown.end(), [](auto* a, auto* b) { return severity(*a) > severity(*b); });
  shown.resize(std::min(most, shown.size()));
  std::sort(shown.begin(), shown.end());  // as they lie in run.events
  return shown;
}

}  // namespace keel::lab
