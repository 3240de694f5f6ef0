// A stored config against the one at hand.
#include <algorithm>
#include <functional>

#include "framework/config/fields.h"

namespace keel::config {
namespace {

// `section_rule` is what the section at `prefix` allows to all of its keys.
void compare(const Fields& before, const Fields& after, const std::string& prefix, OnResume section_rule,
             const std::function<void(Difference, OnResume)>& found) {
  for (size_t i = 0; i < after.entries().size(); ++i) {
    const Fields::Entry &was = before.entries()[i], &is = after.entries()[i];
    std::string path = prefix.empty() ? is.name : prefix + "." + is.name;
    OnResume rule = std::max(section_rule, is.field.on_resume);
    Fields was_inside = was.value->inside(), is_inside = is.value->inside();
    if (!is_inside.empty() && was_inside.entries().size() == is_inside.entries().size()) {
      compare(was_inside, is_inside, path, rule, found);
      continue;
    }
    Difference difference{path, print_line(was.value->write()), print_line(is.value->write())};
    if (difference.stored != difference.now) found(std::move(difference), rule);
  }
}

}  // namespace

std::vector<Difference> compare_on_resume(const Fields& stored, const Fields& now, const Node& section) {
  std::vector<Difference> changed, refused;
  compare(stored, now, "", OnResume::fixed, [&](Difference difference, OnResume rule) {
    if (rule == OnResume::ignored || rule == OnResume::elsewhere) return;
    (rule == OnResume::fixed ? refused : changed).push_back(std::move(difference));
  });
  if (refused.empty()) return changed;
  const Difference& first = refused.front();
  std::string others;
  for (size_t i = 1; i < refused.size(); ++i)
    others += fmt::format("{}{}", i == 1 ? "; differing as well: " : ", ", refused[i].key);
  throw section.find(first.key).error(
      "fixed when a run is resumed: the checkpoint has {}, the config {} (set it back, or start a new run){}",
      first.stored, first.now, others);
}

std::vector<Difference> differences(const Fields& before, const Fields& after) {
  std::vector<Difference> all;
  compare(before, after, "", OnResume::fixed, [&](Difference found, OnResume) { all.push_back(std::move(found)); });
  return all;
}

}  // namespace keel::config
