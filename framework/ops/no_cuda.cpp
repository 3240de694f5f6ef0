// Stands in the place of the *_cuda.cu files in a build without CUDA. Tensors on a GPU cannot be made there, so none of
// these is ever reached by a user.
#include "framework/ops/activation_cuda.h"
#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/bias_cuda.h"
#include "framework/ops/cross_entropy_cuda.h"
#include "framework/ops/elementwise_cuda.h"
#include "framework/ops/embedding_cuda.h"
#include "framework/ops/matmul/matmul_cuda.h"
#include "framework/ops/norm_cuda.h"
#include "framework/ops/qk_norm/head_gains_cuda.h"
#include "framework/ops/qk_norm/logit_scale_cuda.h"
#include "framework/ops/qk_norm/qk_clip_cuda.h"
#include "framework/ops/qk_norm/qk_norm_rope_cuda.h"
#include "framework/ops/sample_sums_cuda.h"
#include "framework/ops/update/adamw_cuda.h"
#include "framework/ops/update/stochastic_rounding_cuda.h"
#include "framework/ops/update/update_gate_cuda.h"

namespace keel::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::internal, "this build has no CUDA");
}

}  // namespace

void activation_forward(Tensor, ConstTensor, ActivationKind) {
  refuse();
}
void activation_backward(Tensor, Tensor, ConstTensor, ConstTensor, ActivationKind) {
  refuse();
}
void adamw(Tensor, const AdamwState&, ConstTensor, const AdamwControls&, const AdamwOptions&) {
  refuse();
}
void attention_forward(const AttentionOutputs&, const AttentionInputs&, const AttentionOptions&) {
  refuse();
}
void attention_backward(const AttentionGradients&, ConstTensor, const AttentionOutputs&, const AttentionInputs&,
                        const AttentionOptions&) {
  refuse();
}
void require_forward_fits(Device, DType, int64_t) {
  refuse();
}
void require_backward_fits(Device, DType, int64_t) {
  refuse();
}
void add_bias(Tensor, ConstTensor) {
  refuse();
}
void convert(Tensor, ConstTensor) {
  refuse();
}
void add(Tensor, ConstTensor, ConstTensor) {
  refuse();
}
void fill(Tensor, float) {
  refuse();
}
void scale(Tensor, float) {
  refuse();
}
void add_sum_of_squares(Tensor, ConstTensor) {
  refuse();
}
void add_out_of_range(Tensor, ConstTensor) {
  refuse();
}
void cross_entropy_statistics(const CrossEntropyStatistics&, Tensor, ConstTensor, const CrossEntropyOptions&) {
  refuse();
}
void cross_entropy_rescale(const CrossEntropyStatistics&, ConstTensor) {
  refuse();
}
void cross_entropy_loss(Tensor, const CrossEntropyStatistics&, ConstTensor, const CrossEntropyOptions&) {
  refuse();
}
void cross_entropy_gradient(Tensor, const CrossEntropyGradient&) {
  refuse();
}
void embedding_forward(Tensor, ConstTensor, ConstTensor, int64_t, float) {
  refuse();
}
void embedding_backward(Tensor, ConstTensor, ConstTensor, int64_t, float) {
  refuse();
}
void head_gains(const HeadGains&, const HeadGainWeights&) {
  refuse();
}
void logit_scale_forward(Tensor, ConstTensor, float) {
  refuse();
}
void logit_scale_backward(Tensor, ConstTensor, float) {
  refuse();
}
void product(Tensor, ConstTensor, ConstTensor, MatmulOptions, ConstTensor) {
  refuse();
}
void add_column_sums(Tensor, ConstTensor) {
  refuse();
}
void norm_forward(const NormForward&) {
  refuse();
}
void norm_backward(const NormBackward&) {
  refuse();
}
void add_moments(Tensor, ConstTensor, float) {
  refuse();
}
void add_parallel_pairs(Tensor, Tensor, const ParallelSample&) {
  refuse();
}
void qk_norm_partial_statistics(Tensor, const QkNormRopeInputs&, const QkNormRopeOptions&) {
  refuse();
}
void qk_norm_merge_statistics(Tensor, ConstTensor, const QkNormRopeOptions&) {
  refuse();
}
void qk_norm_rope_forward(Tensor, Tensor, const QkNormRopeInputs&, ConstTensor, const QkNormRopeOptions&) {
  refuse();
}
void qk_norm_backward_sums(Tensor, const QkNormRopeBackward&) {
  refuse();
}
void qk_norm_rope_backward(const QkNormRopeGradients&, const QkNormRopeBackward&, ConstTensor) {
  refuse();
}
void qk_add_mean_squares(Tensor, Tensor, ConstTensor, const QkNormRopeOptions&) {
  refuse();
}
void qk_clip_factors(Tensor, ConstTensor, ConstTensor, double) {
  refuse();
}
void smallest_of_rows(Tensor, ConstTensor) {
  refuse();
}
void scale_rows(Tensor, ConstTensor, float) {
  refuse();
}
void clamp(Tensor, float, float) {
  refuse();
}
void round_stochastically(Tensor, ConstTensor, const StochasticRounding&) {
  refuse();
}
void update_gate(Tensor, Tensor, const UpdateGateInputs&, double) {
  refuse();
}

}  // namespace keel::ops::cuda
