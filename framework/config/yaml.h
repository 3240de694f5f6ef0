// YAML as a tree of nodes that know where they were written, so that every error is one line:
//   FILE:LINE:COLUMN: section.key: problem        command line: section.key=value: section.key: problem
// Stricter than the library underneath (yaml-cpp, which no header of ours includes): duplicate keys are refused at
// every depth, merge keys (<<) are expanded, tags, several documents, tabs as indentation and anything but UTF-8 are
// refused.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/base/error.h"

namespace keel::config {

// Where something was written. Line and column count from 1; line 0 means that `source` alone says it all.
struct Mark {
  std::shared_ptr<const std::string> source;
  int line = 0;
  int column = 0;
};

// One value of the tree, immutable and cheap to copy.
class Node {
 public:
  enum class Kind { missing, null, text, list, map };
  struct Data;

  Node() = default;  // missing, written nowhere
  // Nodes that were written nowhere, for printing.
  static Node make_null();
  static Node make_text(std::string text);
  static Node make_list(const std::vector<Node>& items);
  static Node make_map(const std::vector<std::pair<std::string, Node>>& entries);

  Kind kind() const;
  bool exists() const { return kind() != Kind::missing; }
  // Missing or null: nothing was chosen here.
  bool empty() const { return kind() == Kind::missing || kind() == Kind::null; }
  // The scalar as written, without quotes; "" for every other kind.
  const std::string& text() const;
  // "optimizer.lr", "data.train[0].path"; "" at the top.
  const std::string& path() const { return path_; }

  // Entries of a map or a list, in the order written; 0 for every other kind.
  size_t size() const;
  std::vector<std::string> keys() const;
  Node operator[](size_t index) const;
  // The value of a key. Where there is none: a missing node that knows its path and, for errors, the nearest section
  // that was written, so that root["optimizer"]["lr"].error(...) is always right.
  Node operator[](std::string_view key) const;
  // The same for a dotted path below this node: "attention.qk_norm.kind", "train.0.path".
  Node find(std::string_view dotted) const;

  // "FILE:LINE:COLUMN", or the source alone, or "" where the node was written nowhere.
  std::string where() const;

  // throw node.error("must be a multiple of {}, is {}", heads, value): one line, kind input, location and path first.
  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return error_line(mark_, fmt::format(format, std::forward<Args>(args)...));
  }
  // The same, pointing at the key instead of its value.
  template <class... Args>
  Error key_error(fmt::format_string<Args...> format, Args&&... args) const {
    return error_line(key_mark_, fmt::format(format, std::forward<Args>(args)...));
  }

  // A copy of this tree with `value` (its own location kept) at a dotted path; sections on the way are made as needed.
  // A section laid over a section changes the keys that it has; all else is replaced. Throws where the path leads
  // through a text, or through a list by anything but an index in it.
  Node with(std::string_view dotted, const Node& value) const;
  // This tree with the places of another one: of what that holds, too, its own, of the rest the nearest section's. For
  // a resolved config, whose errors then name the lines that the user wrote.
  Node at_places_of(const Node& written) const;
  // The same as with() for every key of a map; its keys may be dotted paths: {optimizer.lr: 1e-3, train: {steps: 10}}.
  // Throws where two of them set the same.
  Node with_all(const Node& changes) const;

 private:
  friend class Builder;
  friend std::string print(const Node& node);
  friend std::string print_line(const Node& node);
  Node(std::shared_ptr<const Data> data, std::string path, Mark mark, Mark key_mark)
      : data_(std::move(data)), path_(std::move(path)), mark_(std::move(mark)), key_mark_(std::move(key_mark)) {}
  Error error_line(const Mark& mark, const std::string& problem) const;

  std::shared_ptr<const Data> data_;
  std::string path_;
  Mark mark_;      // of the value
  Mark key_mark_;  // of its key
};

// Reads a config file, then lays `overrides` ("key.path=value", the value in YAML) over it by the same rules.
Node load(const std::string& path, std::span<const std::string> overrides = {});
// The same steps apart. `name` stands in errors where a file's name would.
std::string read_text(const std::string& path);
Node parse(std::string_view text, const std::string& name);
Node with_overrides(Node root, std::span<const std::string> overrides);

// YAML that parses back to the same tree: in block style over several lines, or as one line.
std::string print(const Node& node);
std::string print_line(const Node& node);

// A user's text for an error message: quoted, without line breaks, shortened where it is long.
std::string in_quotes(std::string_view text);

}  // namespace keel::config
