// The CUDA twins of qk_norm_rope.h; arguments are checked already.
#pragma once

#include "framework/ops/qk_norm/qk_norm_rope.h"

namespace keel::ops::cuda {

void qk_norm_partial_statistics(Tensor statistics, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options);
void qk_norm_merge_statistics(Tensor merged, ConstTensor gathered, const QkNormRopeOptions& options);
void qk_norm_rope_forward(Tensor q_out, Tensor k_out, const QkNormRopeInputs& inputs, ConstTensor statistics,
                          const QkNormRopeOptions& options);
void qk_norm_backward_sums(Tensor sums, const QkNormRopeBackward& call);
void qk_norm_rope_backward(const QkNormRopeGradients& gradients, const QkNormRopeBackward& call, ConstTensor sums);
void qk_add_mean_squares(Tensor q, Tensor k, ConstTensor qkv, const QkNormRopeOptions& options);

}  // namespace keel::ops::cuda
