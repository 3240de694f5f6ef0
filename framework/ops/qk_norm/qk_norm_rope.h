// Query-Key Normalization and rotary positions, in one pass forward and one backward: QKNORM.md gives the maths.
//
//   q_out[t, h] = rope(norm(q[t, h]) * gain_q[h]),   k_out[t, g] = rope(norm(k[t, g]) * gain_k[g])
//   (placement after_rope: norm(rope(q)) * gain instead)
//
// q, k and v lie side by side in the rows of the QKV product. v is left where it is. The logit scale g is not applied
// here but by attention, so that it has one place.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

enum class QkNormKind { none, l2, rms, layer };
enum class QkNormScope { head, full };

struct QkNormRopeOptions {
  int64_t heads = 0;     // H of this rank
  int64_t kv_heads = 0;  // G of this rank
  int64_t head_dim = 0;  // d
  int64_t rotated = 0;   // the first `rotated` features of each head turn, pairs (i, i + rotated/2); 0 = no rotation

  QkNormKind kind = QkNormKind::rms;
  QkNormScope scope = QkNormScope::head;
  float eps = 1e-6f;                // inside the root; for l2 a floor on the length
  bool zero_centered = false;       // the gain is 1 + weight
  bool after_rope = false;          // rotate first
  bool cast_before_weight = false;  // round the normalised value to the activation type before the weight

  // Scope full: the logical widths H*d and G*d over all ranks, and how many ranks hold a copy of each KV head.
  int64_t full_width_q = 0;
  int64_t full_width_k = 0;
  int64_t kv_replicas = 1;

  // Whether rows are normalised over all heads, and the numbers of a token that its ranks then combine.
  bool full() const { return scope == QkNormScope::full && kind != QkNormKind::none; }
  int64_t statistic_columns() const { return kind == QkNormKind::layer ? 4 : 2; }
};

struct QkNormRopeInputs {
  ConstTensor qkv;       // [n, (H + 2G) d], the QKV product
  ConstTensor q_weight;  // undefined, [d] or [H, d], fp32 (scope full: [H, d])
  ConstTensor k_weight;  // undefined, [d] or [G, d], fp32
  // [positions, rotated] fp32: row p holds cos then sin of the rotated/2 angles; undefined without
  ConstTensor rope;
  ConstTensor positions;  // [n] int32: each row's position in its document
};

// Scope full only. One row per token and side, fp32: what the ranks combine before the pass.
//   l2, rms: columns {sum x_q^2, sum x_k^2 / R}, added over the ranks.
//   layer:   columns {mean_q, M2_q, mean_k, M2_k}, M2 the centred second moment, of this rank's features; gathered.
// statistics is [n, 2] or [n, 4].
void qk_norm_partial_statistics(Tensor statistics, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options);
// layer: merges gathered statistics [ranks, n, 4] in rank order (Chan et al. 1979; KV replicas weigh 1/R each) into
// [n, 4] of {mean_q, M2_q, mean_k, M2_k} over the full widths.
void qk_norm_merge_statistics(Tensor merged, ConstTensor gathered, const QkNormRopeOptions& options);

// q_out [n, H, d] and k_out [n, G, d], contiguous, in the activation type. `statistics`: combined over the ranks for
// scope full ([n, 2] or [n, 4] as above), undefined for scope head.
void qk_norm_rope_forward(Tensor q_out, Tensor k_out, const QkNormRopeInputs& inputs, ConstTensor statistics,
                          const QkNormRopeOptions& options);

struct QkNormRopeBackward {
  ConstTensor dq_out, dk_out;  // the gradients of forward's outputs, as these lie
  QkNormRopeInputs inputs;     // forward's
  ConstTensor statistics;      // as forward took them
  QkNormRopeOptions options;
};

// Scope full only: the sums that backward combines over the ranks, [n, 2] fp32 {S_q, S_k} with S = sum(gain*dy*x) for
// l2 and rms, [n, 4] {S1_q, S2_q, S1_k, S2_k} with S1 = sum(gain*dy), S2 = sum(gain*dy*xhat) for layer.
void qk_norm_backward_sums(Tensor sums, const QkNormRopeBackward& call);

struct QkNormRopeGradients {
  Tensor d_qkv;       // [n, (H + 2G) d]: the q and k columns are overwritten, v's are not touched
  Tensor d_q_weight;  // fp32, accumulated, the weights' shapes; undefined without weights
  Tensor d_k_weight;
};

// `sums` as combined over the ranks for scope full, undefined for scope head. An l2 row below its floor gets gradient
// 0. Deterministic: weight gradients are added in an order that depends on sizes and thread count only.
void qk_norm_rope_backward(const QkNormRopeGradients& gradients, const QkNormRopeBackward& call, ConstTensor sums);

// q [H] and k [G] fp32 += the mean square of each head before the norm, over rows and features; for telemetry.
void qk_add_mean_squares(Tensor q, Tensor k, ConstTensor qkv, const QkNormRopeOptions& options);

}  // namespace keel::ops
