// The CPU twin of adamw.h; arguments are checked already.
#pragma once

#include "framework/ops/update/adamw.h"

namespace keel::ops::cpu {

// What the loop over the elements reads.
struct AdamwFactors {
  bool made;
  float rate, inverse2, decay;
  float beta1, rest1, beta2, rest2;
  float gradient_scale, eps;
};

void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options);

}  // namespace keel::ops::cpu
