// The CPU twin of bias.h; arguments are checked already.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops::cpu {

void add_bias(Tensor y, ConstTensor bias);

}  // namespace keel::ops::cpu
