// Two-stage sums in double: each block of a kernel leaves one partial sum, a second kernel adds them in the order of
// the blocks. The same sizes on the same device give the same bits.
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace keel::ops::cuda {

// Where a kernel with that many blocks leaves its partial sums, on the current stream: [blocks].
double* partial_sums(Device device, int64_t blocks);
// total [1] fp64 += their sum.
void add_partial_sums(Tensor total, const double* partial, int64_t blocks);

}  // namespace keel::ops::cuda
