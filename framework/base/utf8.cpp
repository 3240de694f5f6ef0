#include "framework/base/utf8.h"

#include <algorithm>
#include <cstring>

namespace keel {
namespace {

bool continues(char c) {
  return (uint8_t(c) & 0xC0) == 0x80;
}

}  // namespace

size_t character_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto first = uint8_t(text[0]);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : (first & 0xF0) == 0xE0         ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if (!continues(text[i])) return 0;
  const auto second = uint8_t(text[1]);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  return overlong || beyond ? 0 : length;
}

size_t valid_prefix_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    while (at + sizeof eight <= text.size()) {  // ASCII, eight bytes at a time
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) != 0) break;
      at += sizeof eight;
    }
    if (at == text.size()) break;
    const size_t length = character_bytes(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

int64_t count_invalid_bytes(std::string_view text) {
  int64_t count = 0;
  while (true) {
    text.remove_prefix(valid_prefix_bytes(text));
    if (text.empty()) return count;
    text.remove_prefix(1);
    ++count;
  }
}

size_t cut_between_characters(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  for (size_t back = 1; back <= std::min<size_t>(3, most); ++back) {
    const size_t length = character_bytes(text.substr(most - back));
    if (length > back) return most - back;
    if (length != 0) break;
  }
  return most;
}

}  // namespace keel
