// The CUDA twins of activation.h; arguments are checked already.
#pragma once

#include "framework/ops/activation.h"

namespace keel::ops::cuda {

void activation_forward(Tensor y, ConstTensor x, ActivationKind kind);
void activation_backward(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind);

}  // namespace keel::ops::cuda
