#include "models/decoder/telemetry_samples.h"

#include <algorithm>

#include "framework/ops/elementwise.h"
#include "framework/ops/sample_sums.h"
#include "framework/tensor/copy.h"

namespace keel::models {
namespace {

constexpr int64_t kMostKeys = 512, kQueries = 16;  // of a query

}  // namespace

StreamMoments StreamMoments::of(const float* sums) {
  const double elements = sums[0], scale = ops::kOfFourthPowers * ops::kOfFourthPowers, squares = sums[2] * scale;
  return {float(sums[1] / elements), squares > 0 ? float(elements * sums[3] / (squares * squares)) : 0};
}

TelemetrySamples::TelemetrySamples(const Sizes& sizes)
    : sizes_(sizes),
      queries_(std::min(sizes.length, kQueries)),
      stream_sums_({sizes.layers, 4}, DType::f32, sizes.device),
      out_of_range_({sizes.layers, 2}, DType::f64, sizes.device),
      parallel_({sizes.layers, sizes.heads}, DType::f32, sizes.device),
      pairs_({sizes.layers, 1}, DType::f32, sizes.device) {}

void TelemetrySamples::begin_step() {
  if (sizes_.layers == 0) return;
  for (const OwnedTensor* sums : {&stream_sums_, &out_of_range_, &parallel_, &pairs_}) zero(*sums);
}

void TelemetrySamples::look_at(int64_t layer, const nn::ResidualStream& stream) {
  look_at_stream(layer, stream.residual);
  const Tensor& rounded = stream.residual.dtype() == DType::bf16 ? stream.residual : stream.branch;
  if (rounded.dtype() == DType::bf16) look_at_range(layer, rounded);
}

void TelemetrySamples::look_at_stream(int64_t layer, ConstTensor residual) {
  ops::add_moments(stream_sums_.tensor.row(layer), residual, kOutlier);
}

void TelemetrySamples::look_at_range(int64_t layer, ConstTensor x) {
  ops::add_out_of_range(out_of_range_.tensor.row(layer), x);
}

void TelemetrySamples::look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key,
                                     int64_t window) {
  if (first_key.defined()) first_key = first_key.flat().slice(0, 0, sizes_.length);
  ops::add_parallel_pairs(parallel_.tensor.row(layer), pairs_.tensor.row(layer),
                          {.q = q.slice(0, 0, sizes_.length),
                           .k = k.slice(0, 0, sizes_.length),
                           .first_key = first_key,
                           .window = window,
                           .queries = queries_,
                           .most_keys = kMostKeys,
                           .least = kParallel});
}

}  // namespace keel::models
