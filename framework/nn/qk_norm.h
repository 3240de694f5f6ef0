// q = rope(norm(q) * gain_q), k = rope(norm(k) * gain_k): Query-Key Normalization and rotation, QKNORM.md section 1.
//
// Scope head needs no communication: a rank owns whole heads. Scope full combines one row of small sums per token over
// the tensor group, forward and backward (QKNORM.md section 5).
#pragma once

#include "framework/nn/context.h"
#include "framework/ops/qk_norm/qk_norm_rope.h"

namespace keel::nn {

enum class QkWeight { none, shared, per_head };

struct QkNormSpec {
  std::string name;             // "blocks.0.attention": parameters NAME.q_norm.weight, NAME.k_norm.weight
  ops::QkNormRopeOptions pass;  // heads, kv_heads: logical
  QkWeight weight = QkWeight::per_head;
  double weight_init = 1;  // effective gain
  bool weight_decay = false;
};

// Each token's place, the same for all layers of a micro-batch.
struct Positions {
  ConstTensor rows;  // [n] int32: position within the document
  ConstTensor rope;  // [positions, rotated] fp32 table of this kind of layer
  // [B, T] int32: first position of the sequence that a row may see; undefined without documents
  ConstTensor first_key;
};

class QkNorm {
 public:
  QkNorm(ParameterSet& parameters, const QkNormSpec& spec);

  struct Saved {
    Tensor statistics;  // scope full: [n, 2] or [n, 4], combined over the ranks
  };

  // Of this rank's heads.
  struct Inputs {
    ConstTensor qkv;  // [n, (H + 2G) d], the QKV product
    Positions positions;
  };
  struct Heads {
    Tensor q;  // [n, H, d]
    Tensor k;  // [n, G, d]
  };
  void forward(const Heads& out, const Inputs& in, Saved& saved, Context& context) const;
  // The q and k columns of d_qkv; v's are not touched.
  void backward(Tensor d_qkv, const Heads& d_out, const Inputs& in, const Saved& saved, Context& context) const;

  // This rank's share of the heads, set where the model is split.
  void set_heads(int64_t heads, int64_t kv_heads, int64_t kv_replicas);
  const ops::QkNormRopeOptions& pass() const { return pass_; }

  Parameter* q_weight = nullptr;
  Parameter* k_weight = nullptr;

 private:
  ops::QkNormRopeInputs inputs(const Inputs& in) const;

  ops::QkNormRopeOptions pass_;
};

}  // namespace keel::nn
