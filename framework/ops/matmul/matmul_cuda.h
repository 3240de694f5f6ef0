// The CUDA twins of matmul.h, by cuBLASLt; arguments are checked already.
#pragma once

#include "framework/ops/matmul/matmul.h"

namespace keel::ops::cuda {

// c = a b (+ bias [columns of c], fp32) (+ c). Any sizes, 0 included.
void product(Tensor c, ConstTensor a, ConstTensor b, MatmulOptions options, ConstTensor bias);
// sums [columns] += the column sums of x, fp32, in an order that depends on the sizes only.
void add_column_sums(Tensor sums, ConstTensor x);

}  // namespace keel::ops::cuda
