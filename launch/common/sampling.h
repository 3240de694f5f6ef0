// Text from a model, token by token.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "framework/base/error.h"
#include "framework/data/tokenizer.h"
#include "models/decoder/decoder.h"

namespace keel {

struct Sampling {
  int64_t tokens = 200;      // at most
  double temperature = 0.8;  // 0 takes the likeliest
  int64_t top = 50;          // of so many likeliest ones one is drawn
  uint64_t seed = 1;
};

// What no next token can be drawn from.
class LogitsNotFinite : public Error {
 public:
  using Error::Error;
};

// The id of the token at `place`, drawn from softmax(logits / temperature) over the `top` largest logits: a function of
// the seed and the place. Equal logits come in the order of their ids. Errors: LogitsNotFinite.
int32_t draw(std::span<const float> logits, const Sampling& sampling, int64_t place);

// A model whose tensor group works together; everything outlives this.
struct Writer {
  models::Decoder& decoder;
  nn::TensorGroup& group;
  const data::Tokenizer& tokenizer;
  Device device;
  int64_t length = 0;              // the last tokens that the model sees
  std::vector<int64_t> ends = {};  // ids that end a text, beside the tokenizer's own
};

// What a model that sees `length` ids sees of these: the last ones, behind the one that begins a text.
std::vector<int32_t> visible_ids(const std::vector<int32_t>& ids, int64_t length, std::optional<int32_t> start);

// What follows the prompt, up to the end of a document: the same on all ranks of the group, a function of the seed.
// Collective over it. Throws where the prompt has ids that the model does not know, and what draw() throws.
std::string write_on(const Writer& writer, const std::string& prompt, const Sampling& sampling);

}  // namespace keel
