#include "framework/ops/qk_norm/qk_norm_rope.h"

#include <algorithm>

#include "framework/base/trace.h"
#include "framework/ops/qk_norm/qk_norm_rope_cpu.h"
#include "framework/ops/qk_norm/qk_norm_rope_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check_options(const char* op, const QkNormRopeOptions& options) {
  require(options.heads > 0 && options.kv_heads > 0 && options.head_dim > 0, "{}: {} heads, {} KV heads of {} features",
          op, options.heads, options.kv_heads, options.head_dim);
  require(options.rotated >= 0 && options.rotated <= options.head_dim && options.rotated % 2 == 0,
          "{}: {} of {} features cannot turn in pairs", op, options.rotated, options.head_dim);
  if (!options.full()) return;
  int64_t q = options.heads * options.head_dim, k = options.kv_heads * options.head_dim;
  require(options.kv_replicas >= 1 && options.full_width_q >= q && options.full_width_q % q == 0 &&
              options.full_width_k >= k && options.full_width_k % k == 0,
          "{}: full widths {} and {} ({} replicas) do not hold this rank's {} and {}", op, options.full_width_q,
          options.full_width_k, options.kv_replicas, q, k);
}

void check_qkv(const char* op, const char* name, const ConstTensor& qkv, const QkNormRopeOptions& options) {
  int64_t columns = (options.heads + 2 * options.kv_heads) * options.head_dim;
  require(qkv.dims() == 2 && qkv.size(1) == columns, "{}: {} must be [n, {}], not {}", op, name, columns, qkv.shape());
}

void check_weight(const char* op, const ConstTensor& weight, int64_t heads, const QkNormRopeOptions& options) {
  if (!weight.defined()) return;
  int64_t d = options.head_dim;
  bool per_head = weight.shape() == Shape{heads, d};
  bool shared = weight.shape() == Shape{d} && !options.full();
  require((per_head || shared) && weight.dtype() == DType::f32 && weight.contiguous(),
          "{}: a gain must be fp32 [{}, {}]{}, not {} {}", op, heads, d, options.full() ? "" : " or [d]",
          name_of(weight.dtype()), weight.shape());
  require(options.kind != QkNormKind::none, "{}: gains without a norm", op);
}

void check_rotation(const char* op, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  if (options.rotated == 0) return;
  const ConstTensor& rope = inputs.rope;
  require(rope.defined() && rope.dims() == 2 && rope.size(1) == options.rotated && rope.dtype() == DType::f32 &&
              rope.contiguous(),
          "{}: the rope table must be fp32 [positions, {}], not {} {}", op, options.rotated, name_of(rope.dtype()),
          rope.shape());
  int64_t tokens = inputs.qkv.size(0);
  require(inputs.positions.defined() && inputs.positions.shape() == Shape{tokens} &&
              inputs.positions.dtype() == DType::i32 && inputs.positions.contiguous(),
          "{}: positions must be int32 [{}], not {} {}", op, tokens, name_of(inputs.positions.dtype()),
          inputs.positions.shape());
  if (inputs.positions.device().kind != DeviceKind::cpu) return;
  const int32_t* positions = inputs.positions.as<int32_t>();
  auto outside = [&](int32_t position) { return position < 0 || position >= rope.size(0); };
  const int32_t* wrong = std::find_if(positions, positions + tokens, outside);
  require(wrong == positions + tokens, "{}: position {} of row {} is outside the rope table of {} positions", op,
          wrong == positions + tokens ? 0 : *wrong, wrong - positions, rope.size(0));
}

void check_inputs(const char* op, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  check_options(op, options);
  check_qkv(op, "qkv", inputs.qkv, options);
  check_weight(op, inputs.q_weight, options.heads, options);
  check_weight(op, inputs.k_weight, options.kv_heads, options);
  check_rotation(op, inputs, options);
}

// One of q or k beside the QKV product.
void check_heads(const char* op, const ConstTensor& x, int64_t heads, const ConstTensor& qkv,
                 const QkNormRopeOptions& options) {
  Shape shape{qkv.size(0), heads, options.head_dim};
  require(x.shape() == shape && x.contiguous() && x.dtype() == qkv.dtype(), "{}: contiguous {} {} expected, got {} {}",
          op, name_of(qkv.dtype()), shape, name_of(x.dtype()), x.shape());
}

void check_statistics(const char* op, const ConstTensor& statistics, int64_t tokens, const QkNormRopeOptions& options) {
  if (!options.full()) return;
  Shape shape{tokens, options.statistic_columns()};
  require(statistics.defined() && statistics.shape() == shape && statistics.dtype() == DType::f32 &&
              statistics.contiguous(),
          "{}: statistics over the full width must be fp32 {}, not {} {}", op, shape, name_of(statistics.dtype()),
          statistics.shape());
}

void check_d_weight(const char* op, const ConstTensor& d_weight, const ConstTensor& weight) {
  require(d_weight.defined() == weight.defined(), "{}: a gain and its gradient come together", op);
  if (!weight.defined()) return;
  require(d_weight.shape() == weight.shape() && d_weight.dtype() == DType::f32 && d_weight.contiguous(),
          "{}: the gradient of gains {} must be fp32 like them, not {} {}", op, weight.shape(),
          name_of(d_weight.dtype()), d_weight.shape());
}

}  // namespace

void qk_norm_partial_statistics(Tensor statistics, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  const Span span("qk_norm_partial_statistics");
  const char* op = "qk_norm_partial_statistics";
  require(options.full(), "{}: only a norm over the full width has them", op);
  check_inputs(op, inputs, options);
  check_statistics(op, statistics, inputs.qkv.size(0), options);
  run_twin(device_of(statistics, inputs.qkv, inputs.rope, inputs.positions), cpu::qk_norm_partial_statistics,
           cuda::qk_norm_partial_statistics, statistics, inputs, options);
}

void qk_norm_merge_statistics(Tensor merged, ConstTensor gathered, const QkNormRopeOptions& options) {
  const char* op = "qk_norm_merge_statistics";
  require(options.full() && options.kind == QkNormKind::layer, "{}: only layer norm over the full width merges", op);
  check_options(op, options);
  require(gathered.dims() == 3 && gathered.size(2) == 4 && gathered.dtype() == DType::f32 && gathered.contiguous(),
          "{}: gathered must be fp32 [ranks, n, 4], not {} {}", op, name_of(gathered.dtype()), gathered.shape());
  check_statistics(op, merged, gathered.size(1), options);
  int64_t ranks = gathered.size(0), d = options.head_dim;
  require(ranks * options.heads * d == options.full_width_q &&
              ranks * options.kv_heads * d == options.full_width_k * options.kv_replicas,
          "{}: {} ranks of {} and {} features ({} replicas) are not the full widths {} and {}", op, ranks,
          options.heads * d, options.kv_heads * d, options.kv_replicas, options.full_width_q, options.full_width_k);
  run_twin(device_of(merged, gathered), cpu::qk_norm_merge_statistics, cuda::qk_norm_merge_statistics, merged, gathered,
           options);
}

void qk_norm_rope_forward(Tensor q_out, Tensor k_out, const QkNormRopeInputs& inputs, ConstTensor statistics,
                          const QkNormRopeOptions& options) {
  const Span span("qk_norm_rope_forward");
  const char* op = "qk_norm_rope_forward";
  check_inputs(op, inputs, options);
  check_heads(op, q_out, options.heads, inputs.qkv, options);
  check_heads(op, k_out, options.kv_heads, inputs.qkv, options);
  check_statistics(op, statistics, inputs.qkv.size(0), options);
  run_twin(
      device_of(q_out, k_out, inputs.qkv, inputs.q_weight, inputs.k_weight, inputs.rope, inputs.positions, statistics),
      cpu::qk_norm_rope_forward, cuda::qk_norm_rope_forward, q_out, k_out, inputs, statistics, options);
}

void qk_norm_backward_sums(Tensor sums, const QkNormRopeBackward& call) {
  const Span span("qk_norm_backward_sums");
  const char* op = "qk_norm_backward_sums";
  const auto& [dq_out, dk_out, inputs, statistics, options] = call;
  require(options.full(), "{}: only a norm over the full width has them", op);
  check_inputs(op, inputs, options);
  check_heads(op, dq_out, options.heads, inputs.qkv, options);
  check_heads(op, dk_out, options.kv_heads, inputs.qkv, options);
  check_statistics(op, statistics, inputs.qkv.size(0), options);
  check_statistics(op, sums, inputs.qkv.size(0), options);
  run_twin(device_of(sums, dq_out, dk_out, inputs.qkv, inputs.q_weight, inputs.k_weight, inputs.rope, inputs.positions,
                     statistics),
           cpu::qk_norm_backward_sums, cuda::qk_norm_backward_sums, sums, call);
}

void qk_norm_rope_backward(const QkNormRopeGradients& gradients, const QkNormRopeBackward& call, ConstTensor sums) {
  const Span span("qk_norm_rope_backward");
  const char* op = "qk_norm_rope_backward";
  const auto& [dq_out, dk_out, inputs, statistics, options] = call;
  check_inputs(op, inputs, options);
  check_qkv(op, "d_qkv", gradients.d_qkv, options);
  require(gradients.d_qkv.size(0) == inputs.qkv.size(0) && gradients.d_qkv.dtype() == inputs.qkv.dtype(),
          "{}: d_qkv {} {} must be like qkv {} {}", op, name_of(gradients.d_qkv.dtype()), gradients.d_qkv.shape(),
          name_of(inputs.qkv.dtype()), inputs.qkv.shape());
  check_heads(op, dq_out, options.heads, inputs.qkv, options);
  check_heads(op, dk_out, options.kv_heads, inputs.qkv, options);
  check_statistics(op, statistics, inputs.qkv.size(0), options);
  check_statistics(op, sums, inputs.qkv.size(0), options);
  check_d_weight(op, gradients.d_q_weight, inputs.q_weight);
  check_d_weight(op, gradients.d_k_weight, inputs.k_weight);
  run_twin(device_of(gradients.d_qkv, gradients.d_q_weight, gradients.d_k_weight, dq_out, dk_out, inputs.qkv,
                     inputs.q_weight, inputs.k_weight, inputs.rope, inputs.positions, statistics, sums),
           cpu::qk_norm_rope_backward, cuda::qk_norm_rope_backward, gradients, call, sums);
}

void qk_add_mean_squares(Tensor q, Tensor k, ConstTensor qkv, const QkNormRopeOptions& options) {
  const Span span("qk_add_mean_squares");
  const char* op = "qk_add_mean_squares";
  check_options(op, options);
  check_qkv(op, "qkv", qkv, options);
  require(q.shape() == Shape{options.heads} && k.shape() == Shape{options.kv_heads} && q.dtype() == DType::f32 &&
              k.dtype() == DType::f32 && q.contiguous() && k.contiguous(),
          "{}: fp32 [{}] and [{}] expected, got {} and {}", op, options.heads, options.kv_heads, q.shape(), k.shape());
  run_twin(device_of(q, k, qkv), cpu::qk_add_mean_squares, cuda::qk_add_mean_squares, q, k, qkv, options);
}

}  // namespace keel::ops
