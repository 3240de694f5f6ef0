// The CPU twins of logit_scale.h; arguments are checked already.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops::cpu {

void logit_scale_forward(Tensor g, ConstTensor w, float g0);
void logit_scale_backward(Tensor dw, ConstTensor dg, float g0);

}  // namespace keel::ops::cpu
