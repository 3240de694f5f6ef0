// What telemetry steps look at beyond attention's own statistics, on a sample of tokens so that it costs little at any
// size: the first 256 tokens of each micro-batch for the residual stream; for cosines, 16 queries spread over the first
// 512 tokens of its first sequence, each against the keys up to its own place.
#pragma once

#include <vector>

#include "framework/tensor/buffer.h"

namespace keel::models {

inline constexpr float kOutlier = 6, kParallel = 0.95f;

// Sums over the micro-batches of a step, of this rank.
class Probe {
 public:
  struct Sizes {
    int64_t layers = 0, hidden = 0;
    int64_t heads = 0, kv_heads = 0, head_dim = 0;  // of this rank
    int64_t length = 0;                             // T
    Device device;
  };
  // Takes all memory; empty on the meta device.
  explicit Probe(const Sizes& sizes);
  Probe() = default;

  void begin_step();
  // residual [n, D], any type: elements, those with |x| > 6, sum of x^2, sum of x^4.
  void look_at_stream(int64_t layer, ConstTensor residual);
  // q [n, H, d], k [n, G, d] as attention multiplies them: pairs with |cos(q, k)| > 0.95.
  void look_at_heads(int64_t layer, ConstTensor q, ConstTensor k);

  ConstTensor stream_sums() const { return stream_sums_; }  // [L, 4] fp32
  ConstTensor parallel() const { return parallel_; }        // [L, H of this rank] fp32, of pairs() pairs each
  int64_t pairs() const { return pairs_; }                  // of one layer and head

 private:
  const float* fetch(ConstTensor rows, int64_t place);

  Sizes sizes_;
  OwnedTensor stream_sums_, parallel_;
  OwnedTensor staging_, host_;  // fp32, on the device and on the host
  std::vector<float> keys_;     // of one head, scaled to length 1
  int64_t pairs_ = 0;
};

}  // namespace keel::models
