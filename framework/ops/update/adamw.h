// AdamW over a flat arena (Loshchilov & Hutter 2019): one pass, fp32 master weights and moments.
//
//   m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2      w -= lr * (m / c1) / (sqrt(v / c2) + eps) + decay * w
//
// with g = gradient * gradient_scale (clipping) and c = 1 - b^updates.
//
// What changes from step to step lies in memory beside the weights: an update can be started before the host knows
// whether it is made (update_gate.h), and recorded once to be replayed.
#pragma once

#include <array>

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct AdamwOptions {
  double beta1 = 0.9;  // double, since 1 - beta enters: 1 - 0.999f is off by 1.3e-5 of itself
  double beta2 = 0.95;
  double eps = 1e-8;
};

// What one update is told.
struct AdamwStep {
  double lr = 0;
  double decay = 0;     // the whole factor: lr * weight_decay, or weight_decay * lr/lr_max where it is independent
  int64_t updates = 1;  // accepted updates, this one counted
};

// The same as the update reads it: {lr / c1, 1 / c2, decay}, in double and rounded once. An error where updates < 1.
using AdamwRates = std::array<float, 3>;
AdamwRates adamw_rates(const AdamwStep& step, const AdamwOptions& options);

struct AdamwState {
  Tensor master;   // [n] fp32
  Tensor moment1;  // [n] fp32
  Tensor moment2;  // [n] fp32
  Tensor compute;  // [n] bf16: rounded copy of the new master; undefined in fp32 runs
};

struct AdamwControls {
  ConstTensor rates;    // [3] fp32: AdamwRates
  ConstTensor gate;     // [2] fp32: gradient_scale, and 0 where nothing may be touched (update_gate.h)
  bool decayed = true;  // false: decay counts as 0
};

// change [1] fp64 += the sum of squares of the change of the master weights.
void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options);

}  // namespace keel::ops
