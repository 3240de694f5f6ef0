// Is a step's update made, and how far is its gradient scaled? Decided where the gradients lie, so that no step waits
// for the host: the update reads the gate, the host reads what happened afterwards.
//
//   loss = sums.loss / counted      norm = sqrt(squares)      gradient_scale = min(1, clip_norm / norm)
//   made = loss, norm and largest logit finite and at most their limits
//
// A norm whose square, scaled, passes fp32 counts as infinite: AdamW's second moments would never come back.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct UpdateGateInputs {
  ConstTensor sums;           // [4] fp64, over all ranks: CrossEntropySums
  ConstTensor squares;        // [1] fp64, over all ranks: sum of squares of the gradient
  ConstTensor largest_logit;  // any shape, fp32: of all heads
  ConstTensor limits;         // [3] fp64: of the loss, the gradient norm and the largest logit; infinity is none
  // How often the sums count each token: the ranks of a tensor group bring the same ones.
  int64_t copies = 1;
};

// As they lie in a tensor [4] fp64.
struct GateValues {
  double loss = 0, z_loss = 0;  // means over counted tokens; the loss is NaN where that of any token is not finite
  double gradient_norm = 0;
  double largest_logit = 0;

  static GateValues of(const double* values) { return {values[0], values[1], values[2], values[3]}; }
};

// As it lies in a tensor [2] fp32.
struct Gate {
  float gradient_scale = 1;
  float made = 0;  // 1 where the update is made

  static Gate of(const float* gate) { return {gate[0], gate[1]}; }
};

// values [4] fp64 = GateValues, gate [2] fp32 = Gate. clip_norm 0: no clipping.
void update_gate(Tensor gate, Tensor values, const UpdateGateInputs& in, double clip_norm);

}  // namespace keel::ops
