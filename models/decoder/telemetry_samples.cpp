#include "models/decoder/telemetry_samples.h"

#include <algorithm>

#include "framework/ops/elementwise.h"
#include "framework/ops/sample_sums.h"
#include "framework/tensor/copy.h"

namespace keel::models {
namespace {

constexpr int64_t kStreamTokens = 256, kSequenceTokens = 512, kQueries = 16;

ConstTensor first_tokens(const ConstTensor& x) {
  return x.slice(0, 0, std::min(x.size(0), kStreamTokens));
}

}  // namespace

TelemetrySamples::TelemetrySamples(const Sizes& sizes)
    : sizes_(sizes),
      tokens_(std::min(sizes.length, kSequenceTokens)),
      queries_(std::min(tokens_, kQueries)),
      stream_sums_({sizes.layers, 4}, DType::f32, sizes.device),
      out_of_range_({sizes.layers, 2}, DType::f64, sizes.device),
      parallel_({sizes.layers, sizes.heads}, DType::f32, sizes.device),
      pairs_({sizes.layers, 1}, DType::f32, sizes.device) {}

void TelemetrySamples::begin_step() {
  if (sizes_.layers == 0) return;
  for (const OwnedTensor* sums : {&stream_sums_, &out_of_range_, &parallel_, &pairs_}) zero(*sums);
}

void TelemetrySamples::look_at_stream(int64_t layer, ConstTensor residual) {
  ops::add_moments(stream_sums_.tensor.row(layer), first_tokens(residual), kOutlier);
}

void TelemetrySamples::look_at_range(int64_t layer, ConstTensor x) {
  ops::add_out_of_range(out_of_range_.tensor.row(layer), first_tokens(x));
}

void TelemetrySamples::look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key,
                                     int64_t window) {
  if (first_key.defined()) first_key = first_key.flat().slice(0, 0, tokens_);
  ops::add_parallel_pairs(parallel_.tensor.row(layer), pairs_.tensor.row(layer),
                          {.q = q.slice(0, 0, tokens_),
                           .k = k.slice(0, 0, tokens_),
                           .first_key = first_key,
                           .window = window,
                           .queries = queries_,
                           .least = kParallel});
}

}  // namespace keel::models
