// The CPU twins of norm.h; arguments are checked already.
#pragma once

#include "framework/ops/norm.h"

namespace keel::ops::cpu {

// With `branch` and `sum` undefined, y = norm(residual).
void norm_forward(Tensor y, Tensor sum, const NormStatistics& statistics, ConstTensor residual, ConstTensor branch,
                  const NormWeights& weights, const NormOptions& options);
void norm_backward(Tensor dx, const NormGradients& gradients, ConstTensor dy, ConstTensor x,
                   const NormStatistics& statistics, const NormWeights& weights, const NormOptions& options,
                   bool accumulate);

}  // namespace keel::ops::cpu
