// The CUDA twin of stochastic_rounding.h; arguments are checked already.
#pragma once

#include "framework/ops/update/stochastic_rounding.h"

namespace keel::ops::cuda {

void round_stochastically(Tensor y, ConstTensor x, const StochasticRounding& rounding);

}  // namespace keel::ops::cuda
