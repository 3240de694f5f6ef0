// The CUDA twin of bias.h; arguments are checked already.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops::cuda {

void add_bias(Tensor y, ConstTensor bias);

}  // namespace keel::ops::cuda
