// CPU twins of attention.h, called after its checks.
#pragma once

#include "framework/ops/attention/attention.h"

namespace keel::ops::cpu {

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);
void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options);

}  // namespace keel::ops::cpu
