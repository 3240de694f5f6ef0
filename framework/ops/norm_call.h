// The arguments of one call of a norm's twins.
#pragma once

#include "framework/ops/norm.h"

namespace keel::ops {

// y = norm(residual + branch) and sum; with `branch` and `sum` undefined, y = norm(residual).
struct NormForward {
  Tensor y, sum;
  NormStatistics statistics;
  ConstTensor residual, branch;
  NormWeights weights;
  NormOptions options;
};

struct NormBackward {
  Tensor dx;
  ConstTensor dy, x;
  NormStatistics statistics;
  NormWeights weights;
  NormOptions options;
  bool accumulate = false;
};

}  // namespace keel::ops
