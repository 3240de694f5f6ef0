// The CPU twin of update_gate.h; arguments are checked already.
#pragma once

#include "framework/ops/update/update_gate.h"

namespace keel::ops::cpu {

void update_gate(Tensor gate, Tensor values, const UpdateGateInputs& in, double clip_norm);

}  // namespace keel::ops::cpu
