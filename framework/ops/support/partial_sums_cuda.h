// Second stages of sums: each block of a kernel leaves partial sums, a second kernel adds them in one order. The same
// sizes on the same device give the same bits.
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace keel::ops::cuda {

// Where a kernel with that many blocks leaves its partial sums, on the current stream: [blocks].
double* partial_sums(Device device, int64_t blocks);
// total [1] fp64 += their sum.
void add_partial_sums(Tensor total, const double* partial, int64_t blocks);

// Columns of partial sums, `rows` of them from each block, to be added to `sums` [columns].
struct PartialColumns {
  float* sums = nullptr;
  const float* partial = nullptr;  // the first block's
  int columns = 0;
  int rows = 1;
  int row_stride = 0;
};
// sums += the blocks' rows, in double; `block_stride` elements lie between what two blocks left. `second` may have no
// columns.
void add_partial_columns(const PartialColumns& first, const PartialColumns& second, int64_t blocks,
                         int64_t block_stride, Device where);

}  // namespace keel::ops::cuda
