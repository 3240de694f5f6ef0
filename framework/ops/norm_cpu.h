// The CPU twins of norm.h; arguments are checked already.
#pragma once

#include "framework/ops/norm.h"

namespace keel::ops::cpu {

// y = norm(residual + branch) and sum; with `branch` and `sum` undefined, y = norm(residual).
struct NormForward {
  Tensor y, sum;
  NormStatistics statistics;
  ConstTensor residual, branch;
  NormWeights weights;
  NormOptions options;
};
void norm_forward(const NormForward& call);

struct NormBackward {
  Tensor dx;
  ConstTensor dy, x;
  NormStatistics statistics;
  NormWeights weights;
  NormOptions options;
  bool accumulate = false;
};
void norm_backward(const NormBackward& call, const NormGradients& gradients);

}  // namespace keel::ops::cpu
