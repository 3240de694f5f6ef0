// The CPU twins of norm.h; arguments are checked already.
#pragma once

#include "framework/ops/norm.h"

namespace keel::ops::cpu {

void norm_forward(const NormForward& call);
void norm_backward(const NormBackward& call);

}  // namespace keel::ops::cpu
