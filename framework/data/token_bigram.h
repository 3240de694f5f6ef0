// A bigram over token ids, smoothed as in ngram.h: what a language model has to beat to have learnt anything from
// context. With c(hw), c(h) counts, t(h) the number of different tokens seen after h, N tokens of which U differ, V
// ids:
//   p_1(w)     = (c(w) + U / V) / (N + U)
//   p_2(w | h) = (c(hw) + t(h) p_1(w)) / (c(h) + t(h)), or p_1(w) for an h never seen
#pragma once

#include <span>

#include "framework/data/dataset.h"
#include "framework/data/ngram.h"

namespace keel::data {

class TokenBigram {
 public:
  // Ids are below `vocabulary`, which is at most 2^31.
  explicit TokenBigram(int64_t vocabulary)
      : vocabulary_(vocabulary), after_(size_t(vocabulary)), kinds_(size_t(vocabulary)) {}

  // Counts more tokens, which continue those before up to end_text().
  void add(std::span<const int32_t> tokens);
  void end_text() { last_ = -1; }
  double probability(int32_t history, int32_t next) const;

 private:
  double unigram(int32_t next) const;

  int64_t vocabulary_, tokens_ = 0, different_ = 0;
  int32_t last_ = -1;
  CountTable unigrams_, bigrams_;       // by w, by h * 2^32 + w
  std::vector<int64_t> after_, kinds_;  // c(h), t(h)
};

// At most so many training tokens are counted: enough for a bigram, some 10 seconds, and 2 GiB (3 while a table grows)
// where no two pairs are the same.
inline constexpr int64_t kMostCounted_tokens = int64_t(1) << 26;

// Nats per counted target of the first `sequences` held-out samples (0: all), by the bigram of the training tokens,
// sources counted once each whatever their weights; of more than most_tokens, every n-th part of most_tokens / 64 is
// counted. What train::Evaluation measures of a model. Errors: an id outside the vocabulary, with file, document and
// offset.
double bigram_loss(const Dataset& training, const Dataset& held_out, int64_t sequences,
                   int64_t most_tokens = kMostCounted_tokens);

}  // namespace keel::data
