// The CUDA twin of bias.h, and what cuBLASLt leaves of a product's bias; arguments are checked already.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops::cuda {

// Rows of a matrix may be strided.
void add_bias(Tensor y, ConstTensor bias);
// y [n, N] += what bias [N] (fp32) loses when it is rounded to y's type. Rows may be strided.
void add_bias_remainder(Tensor y, ConstTensor bias);

}  // namespace keel::ops::cuda
