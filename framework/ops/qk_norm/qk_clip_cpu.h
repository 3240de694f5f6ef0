// The CPU twins of qk_clip.h; arguments are checked already.
#pragma once

#include "framework/ops/qk_norm/qk_clip.h"

namespace keel::ops::cpu {

void qk_clip_factors(Tensor factors, ConstTensor largest, ConstTensor gate, double tau);
void smallest_of_rows(Tensor smallest, ConstTensor x);
void scale_rows(Tensor weights, ConstTensor factors, float shift);
void clamp(Tensor weights, float low, float high);

}  // namespace keel::ops::cpu
