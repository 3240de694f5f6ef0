// What keeps attention's logits within bounds after an update: QK-clip (QKNORM.md section 6; Kimi Team 2025) and bounds
// on gains and logit scales. On fp32 master weights.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// factors = min(1, tau / largest), both [L, H] fp32; 1 where gate [2] fp32 (update_gate.h) says that no update was
// made, and where no logit was above 0.
void qk_clip_factors(Tensor factors, ConstTensor largest, ConstTensor gate, double tau);
// smallest [L] fp32 = the smallest of each row of x [L, H] fp32.
void smallest_of_rows(Tensor smallest, ConstTensor x);
// weights [rows, columns] fp32: w = c (w + shift) - shift with c = factors[row], or factors[0] where it has one
// element; untouched where c = 1. shift 1 is for gains stored as 1 + w.
void scale_rows(Tensor weights, ConstTensor factors, float shift);
// weights (any shape, fp32) into [low, high].
void clamp(Tensor weights, float low, float high);

}  // namespace keel::ops
