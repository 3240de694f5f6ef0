// Reading and writing a described struct; advice for keys that nothing knows.
#include "framework/config/fields.h"

#include <algorithm>

#include "framework/base/text.h"

namespace keel::config {
namespace {

std::string joined(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
}

bool means(const KnownKey& known, const std::string& key) {
  return std::any_of(known.names.begin(), known.names.end(), [&](auto& name) { return folded(name) == folded(key); });
}

std::vector<std::string> names_of(const Fields::Entry& entry) {
  std::vector<std::string> names = {entry.name};
  names.insert(names.end(), entry.field.synonyms.begin(), entry.field.synonyms.end());
  return names;
}

// The key of this section that was probably meant, by its name or a synonym; "" where none is near.
std::string nearest_key(const Fields& fields, const std::string& key) {
  std::vector<std::string> candidates, owners;
  for (const Fields::Entry& entry : fields.entries())
    for (const std::string& name : names_of(entry)) {
      candidates.push_back(name);
      owners.push_back(entry.name);
    }
  std::string near = nearest(key, candidates);
  auto found = std::find(candidates.begin(), candidates.end(), near);
  return near.empty() ? "" : owners[size_t(found - candidates.begin())];
}

// "optimizer.lr", or several of them, where the key exists under its full name or in other sections.
std::string other_places(const Context& context, const std::string& key, const std::string& section) {
  std::vector<KnownKey> known = known_keys(*context.root, context.root_path);
  known.insert(known.end(), context.elsewhere.begin(), context.elsewhere.end());
  std::vector<std::string> places;
  for (const KnownKey& candidate : known) {
    bool here = candidate.path == joined(section, candidate.names.front());
    if (!here && (candidate.path == key || means(candidate, key))) places.push_back(candidate.path);
  }
  if (places.size() > 4) places.resize(4);
  return places.empty() ? "" : words(places);
}

std::string advice_for(const Fields& fields, const Context& context, const Node& section, const std::string& key) {
  std::string near = nearest_key(fields, key), places = other_places(context, key, section.path());
  size_t dot = key.rfind('.');
  if (!places.empty() && dot != std::string::npos)
    return fmt::format("sections nest in a file: write {} inside {}", key.substr(dot + 1), key.substr(0, dot));
  std::string advice = near.empty() ? "" : fmt::format("did you mean {}?", near);
  if (!places.empty()) advice += fmt::format("{}it belongs in {}", near.empty() ? "" : " or ", places);
  if (!advice.empty()) return advice;
  std::vector<std::string> names;
  for (const Fields::Entry& entry : fields.entries()) names.push_back(entry.name);
  return fmt::format("known here: {}", fmt::join(names, ", "));
}

void check_keys(const Node& section, const Fields& fields, const Context& context) {
  for (const std::string& key : section.keys()) {
    if (fields.find(key) != nullptr) continue;
    std::string place = section.path().empty() ? "at the top level" : "in section " + section.path();
    throw section[key].key_error("unknown key {} {} ({})", in_quotes(key), place,
                                 advice_for(fields, context, section, key));
  }
}

}  // namespace

const Fields::Entry* Fields::find(std::string_view name) const {
  auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

const Fields::Entry* Fields::shorthand() const {
  auto found = std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.field.shorthand; });
  return found == entries_.end() ? nullptr : &*found;
}

void Fields::read(const Node& node, const Context& context) const {
  if (node.kind() == Node::Kind::text && shorthand() != nullptr)
    return shorthand()->value->read(node, shorthand()->field, context);
  if (!node.empty() && node.kind() != Node::Kind::map) refuse(node, "a section of keys", context);
  check_keys(node, *this, context);
  Context inner = context;
  inner.alternatives.clear();
  for (const Entry& entry : entries_) {
    Node child = node[entry.name];
    if (entry.field.required && child.empty()) throw child.error("missing, and has no default: {}", entry.field.doc);
    if (child.exists() || entry.value->is_section()) entry.value->read(child, entry.field, inner);
  }
}

Node Fields::write() const {
  std::vector<std::pair<std::string, Node>> entries;
  for (const Entry& entry : entries_) entries.emplace_back(entry.name, entry.value->write());
  return Node::make_map(entries);
}

std::vector<KnownKey> known_keys(const Fields& fields, const std::string& prefix) {
  std::vector<KnownKey> known;
  for (const Fields::Entry& entry : fields.entries()) {
    std::string path = joined(prefix, entry.name);
    known.push_back({path, names_of(entry)});
    std::vector<KnownKey> inside = known_keys(entry.value->inside_documented(), path);
    known.insert(known.end(), inside.begin(), inside.end());
  }
  return known;
}

}  // namespace keel::config
