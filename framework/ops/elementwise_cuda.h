// The CUDA twins of elementwise.h; arguments are checked already.
#pragma once

#include "framework/ops/elementwise.h"

namespace keel::ops::cuda {

void convert(Tensor y, ConstTensor x);
void add(Tensor y, ConstTensor a, ConstTensor b);
void fill(Tensor y, float value);
void scale(Tensor y, float factor);
// These wait for the device.
double sum_of_squares(ConstTensor x);
double sum(ConstTensor x);

}  // namespace keel::ops::cuda
