// What telemetry steps look at beyond attention's own statistics, on a sample of tokens so that it costs little at any
// size: the first 256 tokens of each micro-batch for the residual stream; for cosines, 16 queries spread over the first
// 512 tokens of its first sequence, each against the keys that it sees.
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
  // residual [n, D], any type.
  void look_at_stream(int64_t layer, ConstTensor residual);
  // x [n, D] bf16: how much of it is at an end of its range (ops/elementwise.h).
  void look_at_range(int64_t layer, ConstTensor x);
  // q [n, H, d], k [n, G, d] as attention multiplies them, with its mask: first_key [B, T] or undefined, and the
  // window.
  void look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key, int64_t window);

  // [L, 4] fp32: elements, those with |x| > 6, sum of x^2, sum of x^4.
  ConstTensor stream_sums() const { return stream_sums_; }
  // [L, 2] fp64 where the model lies: values saturated and flushed, of range_elements() of each layer.
  ConstTensor out_of_range() const { return out_of_range_; }
  int64_t range_elements() const { return range_elements_; }
  ConstTensor parallel() const { return parallel_; }  // [L, H of this rank] fp32: pairs with |cos(q, k)| > 0.95,
  ConstTensor pairs() const { return pairs_; }        // [L, 1] fp32: of so many, of each head

 private:
  const float* fetch(ConstTensor rows, int64_t place);
  void see(int64_t tokens, ConstTensor first_key, int64_t window);

  Sizes sizes_;
  OwnedTensor stream_sums_, out_of_range_, parallel_, pairs_;
  int64_t range_elements_ = 0;
  OwnedTensor staging_, host_;      // fp32, on the device and on the host
  std::vector<float> keys_;         // of one head, scaled to length 1
  std::vector<int32_t> first_key_;  // that each token sees
};

}  // namespace keel::models
