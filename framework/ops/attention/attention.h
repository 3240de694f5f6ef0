// Attention without a T x T matrix: tiles of queries meet tiles of keys with a running maximum (Milakov & Gimelshein
// 2018; Dao et al. 2022), O(T) memory.
//
//   s = g[h] * (q . k)   s <- cap * tanh(s / cap)   p = softmax over the visible keys   out = sum p v
//
// A row with no visible key gives output 0, log-sum-exp -infinity and gradient 0.
#pragma once

#include "framework/ops/attention/logit_place.h"
#include "framework/tensor/tensor.h"

namespace keel::ops {

struct AttentionInputs {
  ConstTensor q;          // [B, T_q, H, d]; rows may be strided (views of the QKV product)
  ConstTensor k;          // [B, T_k, G, d], G divides H: query head h reads KV head h / (H/G)
  ConstTensor v;          // [B, T_k, G, d]
  ConstTensor scale;      // [H] fp32: g, already g0 * w
  ConstTensor first_key;  // [B, T_q] int32: the first key a row may see (start of its document); undefined = 0
};

struct AttentionOptions {
  bool causal = true;    // row t sees keys up to q_offset + t
  int64_t q_offset = 0;  // position of the first query among the keys
  int64_t window = 0;    // keys that a row sees, its own position counted; 0 = no limit
  float softcap = 0;     // 0 = none
  int64_t first_sequence = 0;  // number of the batch's first sequence among the step's; for places
};

struct AttentionOutputs {
  Tensor out;            // [B, T_q, H, d], contiguous
  Tensor log_sum_exp;    // [B, H, T_q] fp32, natural logarithm, after scale and soft-cap
  Tensor largest_logit;  // [H] fp32: max(itself, |s| over visible pairs, before the soft-cap); or undefined
  Tensor entropy;        // [H] fp32: itself + sum over rows of the row's entropy in nats; undefined: not wanted
  // [H] int64: LogitPlace of largest_logit, the first of equal ones, where this call raises it; else stays as it was.
  // Queries are counted in T_q, keys in T_k. Undefined: not wanted. Costs the scores of one block of rows per head.
  Tensor place = {};
};

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);

// Input error where a GPU has not the shared memory that heads of this size need: said before a run begins. Nothing on
// other devices.
void require_attention_fits(Device device, DType dtype, int64_t head_dim, bool training);

struct AttentionGradients {
  Tensor dq;       // [B, T_q, H, d], overwritten; rows may be strided
  Tensor dk;       // [B, T_k, G, d], overwritten
  Tensor dv;       // [B, T_k, G, d], overwritten; rows may be strided (the v columns of the QKV gradient)
  Tensor d_scale;  // [H] fp32, accumulated: dL/dg; may be undefined
};

// `outputs.out` and `outputs.log_sum_exp` as forward left them. Deterministic at a given size and thread count.
void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options);

}  // namespace keel::ops
