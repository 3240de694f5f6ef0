#include "models/decoder/probe.h"

#include <algorithm>

#include "framework/ops/elementwise.h"
#include "framework/ops/probe.h"

namespace keel::models {
namespace {

constexpr int64_t kStreamTokens = 256, kSequenceTokens = 512, kQueries = 16;

// Of the table [L, n] of one layer: [n].
Tensor row(const Tensor& table, int64_t layer) {
  return table.slice(0, layer, layer + 1).reshaped({table.size(1)});
}

}  // namespace

Probe::Probe(const Sizes& sizes)
    : sizes_(sizes),
      tokens_(std::min(sizes.length, kSequenceTokens)),
      queries_(std::min(tokens_, kQueries)),
      stream_sums_({sizes.layers, 4}, DType::f32, sizes.device),
      parallel_({sizes.layers, sizes.heads}, DType::f32, sizes.device) {
  for (int64_t i = 1; i <= queries_; ++i) pairs_ += i * tokens_ / queries_;
}

void Probe::begin_step() {
  if (sizes_.layers == 0) return;
  ops::fill(stream_sums_, 0);
  ops::fill(parallel_, 0);
}

void Probe::look_at_stream(int64_t layer, ConstTensor residual) {
  ops::add_moments(row(stream_sums_, layer), residual.slice(0, 0, std::min(residual.size(0), kStreamTokens)), kOutlier);
}

void Probe::look_at_heads(int64_t layer, ConstTensor q, ConstTensor k) {
  ops::add_parallel_pairs(row(parallel_, layer), q.slice(0, 0, tokens_), k.slice(0, 0, tokens_), queries_, kParallel);
}

}  // namespace keel::models
