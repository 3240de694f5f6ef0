// What telemetry steps look at beyond attention's own statistics, on a sample of tokens so that it costs little at any
// size: the first 256 tokens of each micro-batch for the residual stream; for cosines, 16 queries spread over the first
// 512 tokens of its first sequence, each against the keys up to its own place.
#pragma once

#include "framework/tensor/buffer.h"

namespace keel::models {

inline constexpr float kOutlier = 6, kParallel = 0.95f;

// Sums over the micro-batches of a step, of this rank, where the model lies.
class Probe {
 public:
  struct Sizes {
    int64_t layers = 0;
    int64_t heads = 0;   // of this rank
    int64_t length = 0;  // T
    Device device;
  };
  // Takes all memory.
  explicit Probe(const Sizes& sizes);
  Probe() = default;

  void begin_step();
  // residual [n, D], any type: elements, those with |x| > 6, sum of x^2, sum of x^4.
  void look_at_stream(int64_t layer, ConstTensor residual);
  // q [n, H, d], k [n, G, d] as attention multiplies them: pairs with |cos(q, k)| > 0.95.
  void look_at_heads(int64_t layer, ConstTensor q, ConstTensor k);

  ConstTensor stream_sums() const { return stream_sums_; }  // [L, 4] fp32
  ConstTensor parallel() const { return parallel_; }        // [L, H of this rank] fp32
  int64_t pairs() const { return pairs_; }                  // that a layer and head looks at in one micro-batch

 private:
  Sizes sizes_;
  int64_t tokens_ = 0, queries_ = 0, pairs_ = 0;
  OwnedTensor stream_sums_, parallel_;
};

}  // namespace keel::models
