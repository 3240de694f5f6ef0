#include "framework/config/source_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/base/text.h"
#include "framework/base/utf8.h"

namespace keel::config {
namespace {

// What is wrong with the character at `at`, of `length` bytes; "" where nothing is.
std::string character_problem(std::string_view text, size_t at, size_t length) {
  auto byte = static_cast<unsigned char>(text[at]);
  if (length == 0) return fmt::format("byte 0x{:02x} is not UTF-8: save the file as UTF-8", byte);
  if (byte == 0) return "a zero byte: not a text, or saved as UTF-16 (save it as UTF-8)";
  bool control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
  return control ? fmt::format("control character 0x{:02x} in the text: remove it", byte) : "";
}

// The column of a tab in the line's indentation, 0 where there is none.
int tab_column(std::string_view line) {
  size_t tab = line.find_first_not_of(' ');
  return tab != std::string_view::npos && line[tab] == '\t' ? int(tab) + 1 : 0;
}

}  // namespace

std::optional<TextProblem> find_problem(std::string_view text) {
  if (text.size() > kMostText_bytes) return TextProblem{1, 1, "larger than 1 MiB: is this a config?"};
  int line_number = 1;
  for (size_t begin = 0; begin < text.size(); ++line_number) {
    size_t end = std::min(text.find('\n', begin), text.size());
    for (size_t at = begin; at < end;) {
      size_t length = character_bytes(text.substr(at));
      std::string what = character_problem(text, at, length);
      if (!what.empty()) return TextProblem{line_number, int(at - begin) + 1, what};
      at += length;
    }
    if (int column = tab_column(text.substr(begin, end - begin)))
      return TextProblem{line_number, column, "a tab in the indentation: YAML indents with spaces"};
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace keel::config
