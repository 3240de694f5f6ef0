// A stored config against the one at hand.
#include <algorithm>

#include "framework/config/fields.h"

namespace keel::config {
namespace {

struct Comparison {
  std::vector<Difference> changed, refused;
};

// `section_rule` is what the section at `prefix` allows to all of its keys.
void compare(const Fields& stored, const Fields& now, const std::string& prefix, OnResume section_rule,
             Comparison& result) {
  for (size_t i = 0; i < now.entries().size(); ++i) {
    const Fields::Entry &before = stored.entries()[i], &after = now.entries()[i];
    std::string path = prefix.empty() ? after.name : prefix + "." + after.name;
    OnResume rule = std::max(section_rule, after.field.on_resume);
    Fields stored_inside = before.value->inside(), now_inside = after.value->inside();
    if (!now_inside.empty() && stored_inside.entries().size() == now_inside.entries().size()) {
      compare(stored_inside, now_inside, path, rule, result);
      continue;
    }
    if (rule == OnResume::ignored || rule == OnResume::elsewhere) continue;
    Difference difference{path, print_line(before.value->write()), print_line(after.value->write())};
    if (difference.stored == difference.now) continue;
    (rule == OnResume::fixed ? result.refused : result.changed).push_back(std::move(difference));
  }
}

}  // namespace

std::vector<Difference> compare_on_resume(const Fields& stored, const Fields& now, const Node& section) {
  Comparison result;
  compare(stored, now, "", OnResume::fixed, result);
  if (result.refused.empty()) return result.changed;
  const Difference& first = result.refused.front();
  std::string others;
  for (size_t i = 1; i < result.refused.size(); ++i)
    others += fmt::format("{}{}", i == 1 ? "; differing as well: " : ", ", result.refused[i].key);
  throw section.find(first.key).error(
      "fixed when a run is resumed: the checkpoint has {}, the config {} (set it back, or start a new run){}",
      first.stored, first.now, others);
}

}  // namespace keel::config
