// The CPU twin of adamw.h; arguments are checked already.
#pragma once

#include "framework/ops/adamw.h"

namespace keel::ops::cpu {

double adamw(const AdamwState& state, ConstTensor gradient, const AdamwStep& step);

}  // namespace keel::ops::cpu
