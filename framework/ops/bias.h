// y [n, N] += bias [N]: for products whose sum over ranks comes before their bias.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// bias is fp32; the sum is rounded once to y's type.
void add_bias(Tensor y, ConstTensor bias);

}  // namespace keel::ops
