// What lies between bytes and nodes; internal to this folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "framework/config/yaml.h"

namespace keel::config {

struct TextProblem {
  int line = 1;
  int column = 1;
  std::string what;
};

// Anything but UTF-8, control characters (yaml-cpp takes some for the end of the file), tabs as indentation, more than
// 1 MiB; nothing where the text may go to the parser.
std::optional<TextProblem> find_problem(std::string_view text);

inline constexpr size_t kMostText_bytes = size_t(1) << 20;

// parse(), where `with_lines` false leaves lines and columns out of every location: for a value on the command line.
Node parse_text(std::string_view text, const std::string& name, bool with_lines);

}  // namespace keel::config
