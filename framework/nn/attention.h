// qkv = x W_qkv^T + b      q, k = rope(norm(q)), rope(norm(k))      s = g[h] * (q . k)
// y = concat_h(softmax(mask(softcap(s))) v) W_o^T + b_o
//
// x, y [n, D]; H query heads and G key/value heads of size d, of which this rank owns its share. The one place where
// QK-Norm is applied.
#pragma once

#include "framework/nn/linear.h"
#include "framework/nn/qk_norm.h"
#include "framework/ops/attention/attention.h"
#include "framework/ops/qk_norm/head_gains.h"

namespace keel::nn {

enum class LogitScaleKind { fixed, per_layer, per_head };

struct AttentionSpec {
  std::string name;  // "blocks.0.attention"
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, output_bias = false;
  Init init, output_init;
  QkNormSpec qk_norm;
  LogitScaleKind logit_scale = LogitScaleKind::per_head;
  double initial_scale = 1;  // g0; a learned g is g0 * w with w starting at 1
  bool causal = true;
  int64_t window = 0;  // 0 = none
  double softcap = 0;  // 0 = none
};

// Sees q [n, H, d] and k [n, G, d] as attention takes them; forward may not keep them.
class HeadObserver {
 public:
  virtual void look_at_heads(int64_t layer, ConstTensor q, ConstTensor k, ConstTensor first_key, int64_t window) = 0;

 protected:
  ~HeadObserver() = default;
};

// Statistics of one layer over the micro-batches of a step, each [heads of this rank] fp32. Undefined: not wanted.
struct AttentionTelemetry {
  Tensor largest_logit;         // maximum so far
  Tensor largest_logit_place;   // int64: where it stands (ops/attention/logit_place.h)
  Tensor entropy;               // sum over rows so far
  Tensor q_squares, k_squares;  // mean squares before the norm, summed over micro-batches so far
  int64_t first_sequence = 0;   // number of the micro-batch's first sequence among the step's
  HeadObserver* observer = nullptr;
  int64_t layer = 0;  // for the observer
};

class Attention {
 public:
  Attention(ParameterSet& parameters, const AttentionSpec& spec);

  struct Saved {
    ConstTensor x;  // [n, D], what forward took
    Tensor qkv;     // [n, (H + 2G) d]
    QkNorm::Saved qk_norm;
    Tensor q;            // [n, H, d]
    Tensor k;            // [n, G, d]
    Tensor scale;        // [H]: g
    Tensor out;          // [n, H d], before the output product
    Tensor log_sum_exp;  // [B, H, T]
  };

  void refresh();

  // What a micro-batch brings beside x. Backward reads no telemetry.
  struct Inputs {
    Positions positions;
    BatchShape batch;
    AttentionTelemetry telemetry = {};
  };

  // Up to the output product; recomputation stops there.
  void forward_heads(ConstTensor x, const Inputs& in, Saved& saved, Context& context) const;
  void forward(Tensor y, ConstTensor x, const Inputs& in, Saved& saved, Context& context) const;
  // dx is overwritten.
  void backward(Tensor dx, ConstTensor dy, const Inputs& in, const Saved& saved, Context& context) const;

  // What bounds the logits of the next forward pass; bound_factor: HeadGainWeights::factor.
  void observe_gains(const ops::HeadGains& gains, double bound_factor) const;

  // This rank's heads, read off the shards.
  int64_t heads() const { return qkv.weights[0]->local[0] / spec.head_dim; }
  int64_t kv_heads() const { return qkv.weights[1]->local[0] / spec.head_dim; }
  int64_t packed_bytes() const { return qkv.packed_bytes() + output.packed_bytes(); }

  const AttentionSpec spec;
  ColumnParallelLinear qkv;
  QkNorm qk_norm;
  Parameter* logit_scale = nullptr;  // w [1] or [H]; null where g is fixed
  RowParallelLinear output;

 private:
  ops::AttentionInputs heads_of(const Saved& saved, const Inputs& in) const;
  ops::AttentionOptions options() const;
};

}  // namespace keel::nn
