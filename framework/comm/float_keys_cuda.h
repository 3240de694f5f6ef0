// Floats as integers of the same order, with every NaN above all numbers, so that a maximum of integers is one of
// floats that keeps a NaN. On the current stream.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::comm::cuda {

// The keys of x: int32 for fp32 and bf16, int64 for fp64. They lie in `room`, which has the size and type of x and may
// be x, or where they are wider, in the stream's workspace.
Tensor float_keys(Tensor room, ConstTensor x);
void floats_of_keys(Tensor x, ConstTensor keys);

}  // namespace keel::comm::cuda
