// How many bytes of text token ids stand for, for losses per byte: what they decode to, so 1 for a piece that is a
// byte, 1 for a space whatever stands for it, and 0 for ids that decode to nothing (those that begin and end documents,
// control ids, and the unknown one of a tokenizer that loses characters).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "framework/data/tokenizer.h"

namespace keel::data {

class TextBytes {
 public:
  explicit TextBytes(const Tokenizer& tokenizer);

  // Of the targets that count (0 or more), each of which follows the token at its place. The space that some tokenizers
  // put in front of a document is no byte of its text.
  int64_t of_targets(std::span<const int32_t> tokens, std::span<const int32_t> targets) const;

 private:
  int32_t before_text_;                  // the id behind which the text of a document begins
  std::vector<int32_t> bytes_;           // by id
  std::vector<int32_t> bytes_in_front_;  // of an id with which a text begins
};

}  // namespace keel::data
