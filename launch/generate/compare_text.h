// How a generated text stands to the text that a model was trained on.
#pragma once

#include <string>
#include <string_view>

namespace keel {

struct TextComparison {
  int64_t words = 0;         // of letters, case folded
  int64_t known_words = 0;   // that occur in the other text
  std::string longest_copy;  // the longest run of bytes that stands in the other text as well ("" below 8 bytes)
};

TextComparison compare_text(std::string_view generated, std::string_view trained);

}  // namespace keel
