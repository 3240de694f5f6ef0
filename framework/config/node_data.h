// What stands behind a config::Node. Shared between nodes, so that a YAML alias costs nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/config/yaml.h"

namespace keel::config {

struct Node::Data {
  struct Entry {
    std::string key;  // "" in a list
    Mark key_mark;
    std::shared_ptr<const Data> value;
  };

  Kind kind = Kind::null;
  std::string text;
  Mark mark;
  std::vector<Entry> entries;
  // Nodes below and including this one, counted as often as aliases repeat them.
  size_t expanded_nodes = 1;
};

// Whether two dotted paths set the same: they are equal, or one leads through what the other names.
bool overlap(std::string_view a, std::string_view b);

// Deeper trees are refused: nothing in Keel nests so far, and recursion stays safe.
inline constexpr int kMostDepth = 64;

}  // namespace keel::config
