#include "models/decoder/probe.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::models {
namespace {

constexpr int64_t kStreamTokens = 256, kSequenceTokens = 512, kQueries = 16;

float dot(const float* a, const float* b, int64_t d) {
  float sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Probe::Probe(const Sizes& sizes) : sizes_(sizes) {
  stream_sums_ = OwnedTensor({sizes.layers, 4}, DType::f32);
  out_of_range_ = OwnedTensor({sizes.layers, 2}, DType::f64, sizes.device);
  pairs_ = OwnedTensor({sizes.layers, 1}, DType::f32);
  parallel_ = OwnedTensor({sizes.layers, sizes.heads}, DType::f32);
  const int64_t tokens = std::min(sizes.length, kSequenceTokens);
  const int64_t largest = std::max(
      {kStreamTokens * sizes.hidden, tokens * sizes.heads * sizes.head_dim, tokens * sizes.kv_heads * sizes.head_dim});
  staging_ = OwnedTensor({largest}, DType::f32, sizes.device);
  host_ = OwnedTensor({2, largest}, DType::f32);
  keys_.resize(size_t(tokens * sizes.head_dim));
  first_key_.resize(size_t(tokens));
}

void Probe::begin_step() {
  if (sizes_.layers == 0) return;
  for (const OwnedTensor* sums : {&stream_sums_, &out_of_range_, &parallel_, &pairs_}) zero(*sums);
  range_elements_ = 0;
}

// Into one of the two places on the host.
const float* Probe::fetch(ConstTensor rows, int64_t place) {
  const Tensor staged = staging_.tensor.slice(0, 0, rows.elements());
  const Tensor kept =
      host_.tensor.slice(0, place, place + 1).reshaped({host_.tensor.size(1)}).slice(0, 0, rows.elements());
  ops::convert(staged, rows.reshaped({rows.elements()}));
  copy(kept, staged);
  return kept.as<float>();
}

void Probe::look_at_stream(int64_t layer, ConstTensor residual) {
  const int64_t tokens = std::min(residual.size(0), kStreamTokens), elements = tokens * residual.size(1);
  const float* x = fetch(residual.slice(0, 0, tokens), 0);
  double outliers = 0, squares = 0, fourth_powers = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const double square = double(x[i]) * double(x[i]);
    outliers += std::abs(x[i]) > kOutlier;
    squares += square;
    fourth_powers += square * square;
  }
  float* sums = stream_sums_.tensor.as<float>() + 4 * layer;
  for (double part : {double(elements), outliers, squares, fourth_powers}) *sums++ += float(part);
}

void Probe::look_at_range(int64_t layer, ConstTensor x) {
  const ConstTensor sample = x.slice(0, 0, std::min(x.size(0), kStreamTokens));
  ops::add_out_of_range(out_of_range_.tensor.slice(0, layer, layer + 1).reshaped({2}), sample);
  if (layer == 0) range_elements_ += sample.elements();
}

// first_key_ of the first sequence's first tokens.
void Probe::see(int64_t tokens, ConstTensor first_key, int64_t window) {
  std::fill_n(first_key_.begin(), tokens, 0);
  if (first_key.defined())
    copy(Tensor(first_key_.data(), {tokens}, DType::i32),
         first_key.reshaped({first_key.elements()}).slice(0, 0, tokens));
  for (int64_t t = 0; window > 0 && t < tokens; ++t)
    first_key_[size_t(t)] = std::max(first_key_[size_t(t)], int32_t(t - window + 1));
}

void Probe::look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key, int64_t window) {
  const int64_t H = sizes_.heads, G = sizes_.kv_heads, d = sizes_.head_dim;
  const int64_t tokens = std::min(sizes_.length, kSequenceTokens), queries = std::min(tokens, kQueries);
  see(tokens, first_key, window);
  const float* q_rows = fetch(q.slice(0, 0, tokens), 0);  // [tokens, H, d]
  const float* k_rows = fetch(k.slice(0, 0, tokens), 1);  // [tokens, G, d]
  float* parallel = parallel_.tensor.as<float>() + layer * H;
  for (int64_t g = 0; g < G; ++g) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* key = k_rows + (t * G + g) * d;
      const float length = std::sqrt(dot(key, key, d));
      for (int64_t i = 0; i < d; ++i) keys_[size_t(t * d + i)] = length > 0 ? key[i] / length : 0;
    }
    for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h)
      for (int64_t i = 1; i <= queries; ++i) {
        const int64_t t = i * tokens / queries - 1;
        const float* query = q_rows + (t * H + h) * d;
        const float least = kParallel * std::sqrt(dot(query, query, d));
        for (int64_t j = first_key_[size_t(t)]; j <= t; ++j)
          parallel[h] += std::abs(dot(query, &keys_[size_t(j * d)], d)) > least;
      }
  }
  for (int64_t i = 1; i <= queries; ++i) {
    const int64_t t = i * tokens / queries - 1;
    pairs_.tensor.as<float>()[layer] += float(t + 1 - first_key_[size_t(t)]);
  }
}

}  // namespace keel::models
