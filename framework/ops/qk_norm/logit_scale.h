// The logit scale g of QKNORM.md section 1: g[h] = g0 * w, one w per head or one for the layer.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// g [H] = g0 * w, w [H] or [1], fp32; w undefined: g = g0.
void logit_scale_forward(Tensor g, ConstTensor w, float g0);
// dw += g0 * dg, summed over the heads where w is [1].
void logit_scale_backward(Tensor dw, ConstTensor dg, float g0);

}  // namespace keel::ops
