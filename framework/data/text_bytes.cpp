#include "framework/data/text_bytes.h"

#include <string>

namespace keel::data {
namespace {

bool puts_space_in_front(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  std::string text;
  tokenizer.encode("a", ids);
  tokenizer.decode(ids, text);
  return text.starts_with(' ');
}

}  // namespace

TextBytes::TextBytes(const Tokenizer& tokenizer)
    : before_text_(tokenizer.start_of_text().value_or(tokenizer.end_of_document())) {
  const bool space_in_front = puts_space_in_front(tokenizer);
  std::string text;
  for (int32_t id = 0; id < int32_t(tokenizer.vocabulary()); ++id) {
    text.clear();
    tokenizer.decode(std::span(&id, 1), text);
    bytes_.push_back(int32_t(text.size()));
    bytes_in_front_.push_back(bytes_.back() - int32_t(space_in_front && text.starts_with(' ')));
  }
}

int64_t TextBytes::of_targets(std::span<const int32_t> tokens, std::span<const int32_t> targets) const {
  int64_t sum = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    const int32_t target = targets[t];
    if (target < 0 || size_t(target) >= bytes_.size()) continue;  // a model may have more ids than its tokenizer
    sum += (tokens[t] == before_text_ ? bytes_in_front_ : bytes_)[size_t(target)];
  }
  return sum;
}

}  // namespace keel::data
