// The CUDA twins of attention.h; arguments are checked already.
#pragma once

#include "framework/ops/attention.h"

namespace keel::ops::cuda {

// Head sizes up to 256.
void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);
void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options);

void require_forward_fits(Device device, DType dtype, int64_t head_dim);
void require_backward_fits(Device device, DType dtype, int64_t head_dim);

}  // namespace keel::ops::cuda
