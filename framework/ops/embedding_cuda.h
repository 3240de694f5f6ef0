// The CUDA twins of embedding.h; arguments are checked already.
#pragma once

#include "framework/ops/embedding.h"

namespace keel::ops::cuda {

void embedding_forward(Tensor y, ConstTensor table, ConstTensor ids, int64_t first_id, float factor);
void embedding_backward(Tensor d_table, ConstTensor dy, ConstTensor ids, int64_t first_id, float factor);

}  // namespace keel::ops::cuda
