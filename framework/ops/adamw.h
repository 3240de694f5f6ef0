// AdamW over a flat arena (Loshchilov & Hutter 2019): one pass, fp32 master weights and moments.
//
//   m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2      w -= lr * (m / c1) / (sqrt(v / c2) + eps) + decay * w
//
// with g = gradient * gradient_scale (clipping) and c = 1 - b^updates.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct AdamwStep {
  float lr = 0;
  double beta1 = 0.9;  // double, since 1 - beta enters: 1 - 0.999f is off by 1.3e-5 of itself
  double beta2 = 0.95;
  float eps = 1e-8f;
  float decay = 0;  // the whole factor: lr * weight_decay, or weight_decay * lr/lr_max where it is independent
  float gradient_scale = 1;
  int64_t updates = 1;  // accepted updates, this one counted
};

struct AdamwState {
  Tensor master;   // [n] fp32
  Tensor moment1;  // [n] fp32
  Tensor moment2;  // [n] fp32
  Tensor compute;  // [n] bf16: rounded copy of the new master; undefined in fp32 runs
};

// Returns the sum of squares of the change of the master weights, in double.
double adamw(const AdamwState& state, ConstTensor gradient, const AdamwStep& step);

}  // namespace keel::ops
