// The CUDA twin of adamw.h; arguments are checked already.
#pragma once

#include "framework/ops/adamw.h"

namespace keel::ops::cuda {

double adamw(const AdamwState& state, ConstTensor gradient, const AdamwStep& step);

}  // namespace keel::ops::cuda
