// What telemetry steps look at beyond attention's own statistics: the residual stream of all tokens, which is one pass
// over it; for cosines, so that they cost little at any size, 16 queries spread over a micro-batch's first sequence: of
// positions i T / 16 - 1, i = 1 ... 16. Each is compared with up to 512 of the keys that it sees, evenly spaced
// (ops/sample_sums.h).
#pragma once

#include "framework/nn/attention.h"
#include "framework/nn/sublayer.h"

namespace keel::models {

inline constexpr float kOutlier = 6, kParallel = 0.95f;

// Of one layer's stream.
struct StreamMoments {
  float outliers;  // share of |x| > 6
  float kurtosis;  // about 0: E x^4 / (E x^2)^2

  static StreamMoments of(const float* sums);  // [4], as stream_sums() has them
};

// Sums over the micro-batches of a step, of this rank, where the model lies.
class TelemetrySamples : public nn::HeadObserver {
 public:
  struct Sizes {
    int64_t layers = 0;
    int64_t heads = 0;   // of this rank
    int64_t length = 0;  // T
    Device device;
  };
  // Takes all memory.
  explicit TelemetrySamples(const Sizes& sizes);
  TelemetrySamples() = default;

  void begin_step();
  // The stream as the layer left it, its last branch pending: both of what follows.
  void look_at(int64_t layer, const nn::ResidualStream& stream);
  // residual [n, D], any type.
  void look_at_stream(int64_t layer, ConstTensor residual);
  // x [n, D] bf16: how much of it is at an end of its range (ops/elementwise.h).
  void look_at_range(int64_t layer, ConstTensor x);
  // q [n, H, d], k [n, G, d] as attention multiplies them, with its mask: first_key [B, T] or undefined, and the
  // window.
  void look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key, int64_t window) override;

  // [L, 4] fp32: elements, those with |x| > 6, sum of x^2, sum of (x * ops::kOfFourthPowers)^4.
  ConstTensor stream_sums() const { return stream_sums_; }
  // [L, 2] fp64: values saturated and flushed, of as many elements.
  ConstTensor out_of_range() const { return out_of_range_; }
  ConstTensor parallel() const { return parallel_; }  // [L, H of this rank] fp32: pairs with |cos(q, k)| > 0.95,
  ConstTensor pairs() const { return pairs_; }        // [L, 1] fp32: of so many, of each head

 private:
  Sizes sizes_;
  int64_t queries_ = 0;
  OwnedTensor stream_sums_, out_of_range_, parallel_, pairs_;
};

}  // namespace keel::models
