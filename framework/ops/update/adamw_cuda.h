// The CUDA twin of adamw.h; arguments are checked already.
#pragma once

#include "framework/ops/update/adamw.h"

namespace keel::ops::cuda {

void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options);

}  // namespace keel::ops::cuda
