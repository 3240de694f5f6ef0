// The arithmetic of collectives: one definition of what a sum over ranks is, bit by bit.
#pragma once

#include <span>

#include "framework/comm/communicator.h"

namespace keel::comm {

// out[i] = inputs[0][i] + inputs[1][i] + ... added in this order in the type itself (bf16: in fp32, rounded once), or
// their maximum, NaN where any is NaN. Elements are independent, so any cut of a tensor gives the same bits. `out` may
// be one of the inputs.
void reduce_in_order(void* out, std::span<const void* const> inputs, int64_t elements, DType dtype,
                     Reduction reduction);

}  // namespace keel::comm
