#include "launch/common/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/base/log.h"
#include "framework/base/rng.h"
#include "framework/tensor/copy.h"

namespace keel {
namespace {

void check_finite(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad == logits.end()) return;
  throw LogitsNotFinite(
      ErrorKind::internal,
      fmt::format("the model gives id {} a logit of {}: its weights have diverged or overflow; take an earlier "
                  "checkpoint, or precision=fp32",
                  bad - logits.begin(), *bad));
}

// The next token's logits over the first `known` ids, the same on every rank.
std::vector<float> next_logits(const Writer& writer, std::vector<int32_t>& context, int64_t known) {
  const int64_t T = int64_t(context.size());
  std::vector<int32_t> positions(context.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto there = [&](std::vector<int32_t>& values) {
    OwnedTensor ids({1, T}, DType::i32, writer.device);
    copy(ids, Tensor(values.data(), {1, T}, DType::i32));
    return ids;
  };
  const OwnedTensor tokens = there(context), places = there(positions);
  const int64_t columns = writer.decoder.classifier().table->local[0];
  OwnedTensor own({1, columns}, DType::f32, writer.device);
  OwnedTensor gathered({writer.group.size(), columns}, DType::f32, writer.device);
  writer.decoder.next_logits(own, {tokens, {}, places, {}});
  writer.group.gather(gathered, own);
  const HostTensor host(gathered);
  const float* values = host.tensor().as<float>();
  return {values, values + known};
}

void check_ids(const std::vector<int32_t>& ids, int64_t vocabulary) {
  for (int32_t id : ids)
    if (id >= vocabulary)
      throw input_error("the prompt has id {}, and the model knows {} ids: its tokenizer is another one", id,
                        vocabulary);
}

bool ends_text(const Writer& writer, int32_t id) {
  return id == writer.tokenizer.end_of_document() || std::ranges::find(writer.ends, id) != writer.ends.end();
}

}  // namespace

std::vector<int32_t> visible_ids(const std::vector<int32_t>& ids, int64_t length, std::optional<int32_t> start) {
  if (int64_t(ids.size()) <= length) return ids;
  std::vector<int32_t> visible(ids.end() - length, ids.end());
  if (start && length > 1) visible[0] = *start;
  return visible;
}

int32_t draw(std::span<const float> logits, const Sampling& sampling, int64_t place) {
  check_finite(logits);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t top = std::clamp<size_t>(size_t(sampling.top), 1, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + int64_t(top), ids.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  });
  if (sampling.temperature == 0) return ids[0];
  std::vector<double> weights(top);
  for (size_t i = 0; i < top; ++i)
    weights[i] = std::exp((double(logits[size_t(ids[i])]) - double(logits[size_t(ids[0])])) / sampling.temperature);
  double left = uniform(key_of(sampling.seed, "generate"), uint64_t(place)) *
                std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < top; ++i)
    if ((left -= weights[i]) <= 0) return ids[i];
  return ids[top - 1];
}

std::string write_on(const Writer& writer, const std::string& prompt, const Sampling& sampling) {
  const int64_t vocabulary = writer.decoder.config().vocab.value();
  std::vector<int32_t> ids;
  writer.tokenizer.begin_document(ids);
  writer.tokenizer.encode(prompt, ids);
  if (ids.empty()) ids.push_back(writer.tokenizer.end_of_document());
  check_ids(ids, vocabulary);
  const size_t begin = ids.size();
  if (int64_t(begin) > writer.length)
    log::info("the prompt has {} tokens, and the model sees {}: the beginning is left out", begin, writer.length);
  // A model may have ids that its tokenizer does not use.
  const int64_t known = std::min(vocabulary, writer.tokenizer.vocabulary());
  for (int64_t i = 0; i < sampling.tokens; ++i) {
    std::vector<int32_t> context = visible_ids(ids, writer.length, writer.tokenizer.start_of_text());
    ids.push_back(draw(next_logits(writer, context, known), sampling, i));
    if (!ends_text(writer, ids.back())) continue;
    ids.pop_back();
    break;
  }
  std::string text;
  writer.tokenizer.decode(std::span(ids).subspan(begin), text);
  return text;
}

}  // namespace keel
