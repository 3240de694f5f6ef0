// From YAML text to config::Node, over yaml-cpp's stream of events (its own tree hides duplicates and merge keys).
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "framework/config/node_data.h"
#include "framework/config/source_text.h"

namespace keel::config {

class Builder : public YAML::EventHandler {
 public:
  Builder(std::shared_ptr<const std::string> source, bool with_lines)
      : source_(std::move(source)), with_lines_(with_lines) {}

  // Missing, but located, where the document is empty.
  Node root() const { return Node(root_, "", root_ ? root_->mark : Mark{source_, with_lines_, with_lines_}, {}); }
  Error error(const YAML::Mark& mark, const std::string& problem) const {
    return Node(nullptr, path(), mark_of(mark), {}).error("{}", problem);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override;
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  using Data = Node::Data;
  using SharedData = std::shared_ptr<const Data>;

  // A list or map whose end has not been seen.
  struct Open {
    std::shared_ptr<Data> data;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    std::optional<std::string> key;  // of the value that comes next
    YAML::Mark key_mark;
    bool merge = false;                          // that key is <<
    std::unordered_map<std::string, int> lines;  // where each key of a map was first seen
    SharedData merged;                           // the value of <<
    YAML::Mark merged_mark;
  };

  Mark mark_of(const YAML::Mark& mark) const {
    return with_lines_ ? Mark{source_, mark.line + 1, mark.column + 1} : Mark{source_};
  }
  bool expects_key() const { return !open_.empty() && open_.back().data->kind == Node::Kind::map && !open_.back().key; }
  std::string path() const;
  void check_tag(const YAML::Mark& mark, const std::string& tag) const;
  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor);
  void close();
  void take_key(const YAML::Mark& mark, const std::string& key, bool plain);
  void finish(SharedData data, YAML::anchor_t anchor, const YAML::Mark& mark);
  void merge(Open& map);
  void merge_map(Data& map, const Data& other) const;

  std::shared_ptr<const std::string> source_;
  bool with_lines_;
  std::vector<Open> open_;
  std::unordered_map<YAML::anchor_t, SharedData> anchors_;
  SharedData root_;
};

std::string Builder::path() const {
  std::string path;
  for (const Open& open : open_) {
    if (open.data->kind == Node::Kind::list) path += fmt::format("[{}]", open.data->entries.size());
    if (open.key) path += (path.empty() ? "" : ".") + *open.key;
  }
  return path;
}

void Builder::check_tag(const YAML::Mark& mark, const std::string& tag) const {
  bool implicit = tag.empty() || tag == "?" || tag == "!";
  if (!implicit) throw error(mark, fmt::format("tag {} is not supported: write the value alone", in_quotes(tag)));
}

void Builder::OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) {
  if (expects_key()) throw error(mark, "a key is empty");
  auto data = std::make_shared<Data>();
  data->mark = mark_of(mark);
  finish(data, anchor, mark);
}

void Builder::OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) {
  if (expects_key()) throw error(mark, "an alias cannot be a key");
  auto found = anchors_.find(anchor);
  if (found == anchors_.end()) throw error(mark, "an alias inside the value that it repeats");
  finish(found->second, 0, mark);
}

void Builder::OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       const std::string& value) {
  check_tag(mark, tag);
  if (expects_key()) return take_key(mark, value, tag != "!");
  auto data = std::make_shared<Data>();
  data->kind = Node::Kind::text;
  data->text = value;
  data->mark = mark_of(mark);
  finish(data, anchor, mark);
}

void Builder::open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
  check_tag(mark, tag);
  if (expects_key()) throw error(mark, "a key must be a single word, not a list or a map (or a bracket is not closed)");
  if (open_.size() >= size_t(kMostDepth)) throw error(mark, fmt::format("nested deeper than {} levels", kMostDepth));
  auto data = std::make_shared<Data>();
  data->kind = kind;
  data->mark = mark_of(mark);
  open_.emplace_back();
  open_.back().data = std::move(data);
  open_.back().anchor = anchor;
  open_.back().mark = mark;
}

void Builder::close() {
  if (open_.back().merged) merge(open_.back());
  Open done = std::move(open_.back());
  open_.pop_back();
  finish(std::move(done.data), done.anchor, done.mark);
}

void Builder::take_key(const YAML::Mark& mark, const std::string& key, bool plain) {
  Open& map = open_.back();
  auto [first, is_new] = map.lines.try_emplace(key, mark.line + 1);
  map.key = key;
  map.key_mark = mark;
  map.merge = plain && key == "<<";
  if (is_new) return;
  const char* advice = map.merge ? ": write <<: [*first, *second]" : ": keep one of the two";
  throw error(mark,
              fmt::format("duplicate key, first on line {}, again on line {}{}", first->second, mark.line + 1, advice));
}

void Builder::finish(SharedData data, YAML::anchor_t anchor, const YAML::Mark& mark) {
  constexpr size_t kMostNodes = 100'000;
  if (anchor != 0) anchors_[anchor] = data;
  if (open_.empty()) {
    root_ = std::move(data);
    return;
  }
  Open& parent = open_.back();
  parent.data->expanded_nodes += data->expanded_nodes;
  if (parent.data->expanded_nodes > kMostNodes)
    throw error(mark, fmt::format("more than {} values once aliases are expanded", kMostNodes));
  if (parent.merge) {
    parent.merged = std::move(data);
    parent.merged_mark = mark;
  } else {
    Mark key_mark = parent.key ? mark_of(parent.key_mark) : data->mark;
    parent.data->entries.push_back({parent.key.value_or(""), key_mark, std::move(data)});
  }
  parent.key.reset();
  parent.merge = false;
}

// YAML's merge key: the keys of a map, or of several (the first one wins), that the map at hand does not have itself.
void Builder::merge(Open& map) {
  auto other = std::move(map.merged);
  auto check = [&](const Data& data) {
    if (data.kind == Node::Kind::map) return;
    throw error(map.merged_mark, "<< needs a map or a list of maps, such as <<: *anchor");
  };
  if (other->kind != Node::Kind::list) {
    check(*other);
    return merge_map(*map.data, *other);
  }
  for (const Data::Entry& entry : other->entries) {
    check(*entry.value);
    merge_map(*map.data, *entry.value);
  }
}

void Builder::merge_map(Data& map, const Data& other) const {
  std::unordered_set<std::string_view> own;
  std::vector<Data::Entry> added;
  for (const Data::Entry& entry : map.entries) own.insert(entry.key);
  for (const Data::Entry& entry : other.entries)
    if (!own.contains(entry.key)) added.push_back(entry);
  for (const Data::Entry& entry : added) map.expanded_nodes += entry.value->expanded_nodes;
  map.entries.insert(map.entries.end(), added.begin(), added.end());
}

Node parse_text(std::string_view text, const std::string& name, bool with_lines) {
  auto source = std::make_shared<const std::string>(name);
  Builder builder(source, with_lines);
  if (auto problem = find_problem(text)) {
    YAML::Mark mark;
    mark.line = problem->line - 1;
    mark.column = problem->column - 1;
    throw builder.error(mark, problem->what);
  }
  // An end marker that is no part of the text: yaml-cpp lets a quote that is never closed run to the end of the file.
  bool ends_line = text.empty() || text.back() == '\n';
  std::istringstream stream{std::string(text) + (ends_line ? "...\n" : "\n...\n")};
  int lines = int(std::count(text.begin(), text.end(), '\n')) + !ends_line;
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Builder second(source, with_lines);
    if (parser.HandleNextDocument(second))
      throw second.root().error("a second document (---), or a line indented less than the first: a config is one map");
  } catch (const YAML::Exception& exception) {
    const char* advice = exception.mark.line >= lines ? " (a quote or bracket is not closed)" : "";
    throw builder.error(exception.mark, fmt::format("not valid YAML: {}{}", exception.msg, advice));
  }
  return builder.root();
}

Node parse(std::string_view text, const std::string& name) {
  return parse_text(text, name, true);
}

}  // namespace keel::config
