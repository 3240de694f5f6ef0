#include "framework/data/token_bigram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "framework/base/error.h"

namespace keel::data {
namespace {

uint64_t pair_of(int32_t history, int32_t next) {
  return uint64_t(history) << 32 | uint32_t(next);
}

void check_ids(const TokenFile& file, int64_t first, std::span<const int32_t> ids, int64_t vocabulary) {
  const auto bad = std::ranges::find_if(ids, [=](int32_t id) { return id < 0 || id >= vocabulary; });
  if (bad != ids.end()) throw file.id_error(first + (bad - ids.begin()), vocabulary);
}

TokenBigram counted(const Dataset& training, int64_t most_tokens) {
  int64_t tokens = 0, number = 0;
  for (const TokenFile& file : training.files()) tokens += file.tokens();
  const int64_t every = (tokens + most_tokens - 1) / most_tokens, part = std::max<int64_t>(1, most_tokens / 64);
  TokenBigram bigram(training.options().vocabulary);
  std::vector<int32_t> ids;
  for (const TokenFile& file : training.files()) {
    for (int64_t first = 0; first < file.tokens(); first += part) {
      if (number++ % every != 0) continue;
      ids.resize(size_t(std::min(part, file.tokens() - first)));
      file.read(first, ids);
      check_ids(file, first, ids, training.options().vocabulary);
      bigram.add(ids);
      if (every > 1) bigram.end_text();
    }
    bigram.end_text();
  }
  return bigram;
}

}  // namespace

void TokenBigram::add(std::span<const int32_t> tokens) {
  for (const int32_t next : tokens) {
    require(next >= 0 && next < vocabulary_, "a bigram of {} ids is given id {}", vocabulary_, next);
    different_ += unigrams_.find(uint64_t(next)) == 0;
    unigrams_.add(uint64_t(next), 1);
    ++tokens_;
    const int32_t history = std::exchange(last_, next);
    if (history < 0) continue;
    kinds_[size_t(history)] += bigrams_.find(pair_of(history, next)) == 0;
    bigrams_.add(pair_of(history, next), 1);
    ++after_[size_t(history)];
  }
}

double TokenBigram::unigram(int32_t next) const {
  const double kinds = double(std::max<int64_t>(1, different_));
  return (double(unigrams_.find(uint64_t(next))) + kinds / double(vocabulary_)) / (double(tokens_) + kinds);
}

double TokenBigram::probability(int32_t history, int32_t next) const {
  const double seen = double(after_[size_t(history)]), kinds = double(kinds_[size_t(history)]);
  if (seen == 0) return unigram(next);
  return (double(bigrams_.find(pair_of(history, next))) + kinds * unigram(next)) / (seen + kinds);
}

double bigram_loss(const Dataset& training, const Dataset& held_out, int64_t sequences, int64_t most_tokens) {
  require(training.options().vocabulary == held_out.options().vocabulary, "a bigram of {} ids over text of {}",
          training.options().vocabulary, held_out.options().vocabulary);
  const TokenBigram bigram = counted(training, most_tokens);
  const ValidationOrder order = held_out.validation_order();
  const int64_t T = held_out.options().T,
                samples = sequences > 0 ? std::min(sequences, order.samples()) : order.samples();
  std::vector<int32_t> tokens(size_t(T), 0), targets(size_t(T), 0),
      positions(held_out.options().document_mask ? size_t(T) : 0);
  double nats = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const SampleId row = order(i);
    counted += held_out.fill(std::span(&row, 1), {tokens, targets, positions});
    for (size_t t = 0; t < size_t(T); ++t)
      if (targets[t] >= 0) nats -= std::log(bigram.probability(tokens[t], targets[t]));
  }
  return nats / double(std::max<int64_t>(1, counted));
}

}  // namespace keel::data
