// Table lookup. A table may hold only the rows [first_id, first_id + rows) of the vocabulary (vocabulary-parallel):
// other ids give zero rows, which the ranks then add up.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// y [n, D] = table [rows, D][ids[n] - first_id] * factor. y is fp32 or bf16, ids [n] int32; an id outside the whole
// vocabulary is one outside the table.
void embedding_forward(Tensor y, ConstTensor table, ConstTensor ids, int64_t first_id, float factor);
// d_table [rows, D] fp32 += factor * dy [n, D], rows of equal ids added in the order of n: the same bits at any number
// of threads.
void embedding_backward(Tensor d_table, ConstTensor dy, ConstTensor ids, int64_t first_id, float factor);

}  // namespace keel::ops
