// The CUDA twins of elementwise.h; arguments are checked already.
#pragma once

#include "framework/ops/elementwise.h"

namespace keel::ops::cuda {

void convert(Tensor y, ConstTensor x);
void add(Tensor y, ConstTensor a, ConstTensor b);
void fill(Tensor y, float value);
void scale(Tensor y, float factor);
void add_sum_of_squares(Tensor total, ConstTensor x);
void add_out_of_range(Tensor counts, ConstTensor x);

}  // namespace keel::ops::cuda
