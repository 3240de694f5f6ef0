// Well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace keel {

// Bytes of the well-formed character that `text` begins with; 0 where it begins with none (or is empty).
size_t character_bytes(std::string_view text);

// Bytes of the longest well-formed beginning.
size_t valid_prefix_bytes(std::string_view text);

// Bytes that belong to no well-formed character.
int64_t count_invalid_bytes(std::string_view text);

// The largest cut of at most `most` bytes that splits no well-formed character.
size_t cut_between_characters(std::string_view text, size_t most);

}  // namespace keel
