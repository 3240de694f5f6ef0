#include <fmt/format.h>

#include <algorithm>

#include "framework/base/text.h"
#include "framework/config/node_data.h"

namespace keel::config {
namespace {

const std::string no_text;
constexpr size_t kLongestPath = 160;

std::string child_path(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// One line for a terminal, whatever a file's name, key or value contains.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

// Splits "a.b.c" into "a" and "b.c".
std::pair<std::string_view, std::string_view> split_first(std::string_view dotted) {
  size_t dot = dotted.find('.');
  if (dot == std::string_view::npos) return {dotted, {}};
  return {dotted.substr(0, dot), dotted.substr(dot + 1)};
}

// SIZE_MAX where `word` is no index of a list with `size` entries.
size_t index_of(std::string_view word, size_t size) {
  int64_t index = 0;
  bool valid = parse_integer(word, index) && index >= 0 && size_t(index) < size;
  return valid ? size_t(index) : SIZE_MAX;
}

// `changes` over `base`: sections key by key, all else replaced.
std::shared_ptr<const Node::Data> overlaid(const std::shared_ptr<const Node::Data>& base,
                                           const std::shared_ptr<const Node::Data>& changes) {
  bool sections = base && changes && base->kind == Node::Kind::map && changes->kind == Node::Kind::map;
  if (!sections) return changes;
  auto result = std::make_shared<Node::Data>(*base);
  for (const Node::Data::Entry& change : changes->entries) {
    auto found = std::find_if(result->entries.begin(), result->entries.end(),
                              [&](const Node::Data::Entry& entry) { return entry.key == change.key; });
    if (found == result->entries.end())
      result->entries.push_back(change);
    else
      *found = {change.key, change.key_mark, overlaid(found->value, change.value)};
  }
  return result;
}

}  // namespace

bool overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (b.size() == a.size() || b[a.size()] == '.');
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string shown(text.substr(0, kLongest));
  if (text.size() > kLongest) {
    while (!shown.empty() && (static_cast<unsigned char>(text[shown.size()]) & 0xC0) == 0x80) shown.pop_back();
    shown += "...";
  }
  return one_line("'" + shown + "'");
}

Node Node::make_null() {
  return Node(std::make_shared<Data>(), "", {}, {});
}

Node Node::make_text(std::string text) {
  auto data = std::make_shared<Data>();
  data->kind = Kind::text;
  data->text = std::move(text);
  return Node(data, "", {}, {});
}

Node Node::make_list(const std::vector<Node>& items) {
  auto data = std::make_shared<Data>();
  data->kind = Kind::list;
  for (const Node& item : items) data->entries.push_back({"", {}, item.data_});
  return Node(data, "", {}, {});
}

Node Node::make_map(const std::vector<std::pair<std::string, Node>>& entries) {
  auto data = std::make_shared<Data>();
  data->kind = Kind::map;
  for (const auto& [key, value] : entries) data->entries.push_back({key, {}, value.data_});
  return Node(data, "", {}, {});
}

Node::Kind Node::kind() const {
  return data_ ? data_->kind : Kind::missing;
}

const std::string& Node::text() const {
  return data_ ? data_->text : no_text;
}

size_t Node::size() const {
  return data_ ? data_->entries.size() : 0;
}

std::vector<std::string> Node::keys() const {
  std::vector<std::string> keys;
  if (kind() == Kind::map)
    for (const Data::Entry& entry : data_->entries) keys.push_back(entry.key);
  return keys;
}

Node Node::operator[](size_t index) const {
  require(index < size(), "config: entry {} of {}, which has {}", index, path_, size());
  const Data::Entry& entry = data_->entries[index];
  std::string path = kind() == Kind::map ? child_path(path_, entry.key) : fmt::format("{}[{}]", path_, index);
  return Node(entry.value, std::move(path), entry.value->mark, entry.key_mark);
}

Node Node::operator[](std::string_view key) const {
  if (kind() == Kind::map)
    for (size_t i = 0; i < data_->entries.size(); ++i)
      if (data_->entries[i].key == key) return (*this)[i];
  return Node(nullptr, child_path(path_, key), mark_, mark_);
}

Node Node::find(std::string_view dotted) const {
  auto [first, rest] = split_first(dotted);
  size_t index = kind() == Kind::list ? index_of(first, size()) : SIZE_MAX;
  Node child = index == SIZE_MAX ? (*this)[first] : (*this)[index];
  return rest.empty() ? child : child.find(rest);
}

std::string Node::where() const {
  if (!mark_.source) return "";
  return mark_.line == 0 ? *mark_.source : fmt::format("{}:{}:{}", *mark_.source, mark_.line, mark_.column);
}

Error Node::error_line(const Mark& mark, const std::string& problem) const {
  std::string line = Node(nullptr, "", mark, mark).where();
  std::string path = path_.size() > kLongestPath ? path_.substr(0, kLongestPath) + "..." : path_;
  for (const std::string& part : {path, problem})
    if (!part.empty()) line += line.empty() ? part : ": " + part;
  return Error(ErrorKind::input, one_line(std::move(line)));
}

Node Node::with(std::string_view dotted, const Node& value) const {
  if (std::count(dotted.begin(), dotted.end(), '.') >= kMostDepth)
    throw value.error("nested deeper than {} levels", kMostDepth);
  auto [first, rest] = split_first(dotted);
  if (first.empty() || dotted.ends_with('.')) throw value.error("{} is no key: write section.key", in_quotes(dotted));
  auto copy = data_ ? std::make_shared<Data>(*data_) : std::make_shared<Data>();
  if (empty()) {
    copy->kind = Kind::map;
    copy->mark = value.mark_;
  }
  if (copy->kind == Kind::text) throw value.error("{} is a single value and has no key {}", path_, in_quotes(first));
  size_t index = index_of(first, size());
  if (copy->kind == Kind::list && index == SIZE_MAX)
    throw value.error("{} is a list of {}: {} is no index in it", path_, size(), in_quotes(first));
  if (copy->kind == Kind::map) {
    auto found = std::find_if(copy->entries.begin(), copy->entries.end(), [&](auto& e) { return e.key == first; });
    index = size_t(found - copy->entries.begin());
    if (found == copy->entries.end()) copy->entries.push_back({std::string(first), value.mark_, nullptr});
  }
  Data::Entry& entry = copy->entries[index];
  Node child = index < size() ? (*this)[index] : Node(nullptr, child_path(path_, first), value.mark_, value.mark_);
  entry.value = rest.empty() ? overlaid(entry.value, value.data_) : child.with(rest, value).data_;
  entry.key_mark = rest.empty() ? value.mark_ : entry.key_mark;
  return Node(copy, path_, copy->mark, key_mark_);
}

Node Node::at_places_of(const Node& written) const {
  if (!data_) return *this;
  auto copy = std::make_shared<Data>(*data_);
  copy->mark = written.mark_;
  const bool same_list = copy->kind == Kind::list && written.kind() == Kind::list && written.size() == size();
  for (size_t i = 0; i < copy->entries.size(); ++i) {
    Data::Entry& entry = copy->entries[i];
    const Node place = same_list                  ? written[i]
                       : copy->kind == Kind::list ? Node(nullptr, "", written.mark_, written.mark_)
                                                  : written[entry.key];
    entry.key_mark = place.key_mark_;
    entry.value = (*this)[i].at_places_of(place).data_;
  }
  return Node(copy, path_, copy->mark, written.key_mark_);
}

Node Node::with_all(const Node& changes) const {
  if (!changes.empty() && changes.kind() != Kind::map) throw changes.error("needs a map of keys and their values");
  Node result = *this;
  std::vector<std::string> seen;
  for (const std::string& key : changes.keys()) {
    for (const std::string& other : seen)
      if (overlap(other, key)) throw changes[key].key_error("set twice, also by {}", other);
    result = result.with(key, changes[key]);
    seen.push_back(key);
  }
  return result;
}

}  // namespace keel::config
