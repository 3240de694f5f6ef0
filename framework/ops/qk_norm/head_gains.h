// The largest effective gain of each head of a layer, and the bound on its logits that follows (QKNORM.md section 3):
//
//   q[h] = max_i |w_q[h, i] + shift|    k[g] likewise    scale[h] = |g0 w[h]|
//   bound[h] = factor |w[h]| q[h] k[h G / H]
//
// with what the layer lacks as 1. `factor` is what does not change in training, |g0| among it; 0: nothing bounds the
// logits, and the bounds are infinite. H, G: the heads of this rank.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct HeadGainWeights {
  ConstTensor q, k;   // [H, d] and [G, d], or [d] where heads share one; undefined: no gains
  ConstTensor scale;  // [H], or [1] where heads share one; undefined: fixed
  int64_t head_dim = 0;
  float shift = 0;  // 1 for gains stored as 1 + w
  float initial_scale = 1;
  float factor = 0;
};

struct HeadGains {
  Tensor q;      // [H]
  Tensor k;      // [G]
  Tensor scale;  // [H]
  Tensor bound;  // [H]
};

// All fp32.
void head_gains(const HeadGains& gains, const HeadGainWeights& weights);

}  // namespace keel::ops
