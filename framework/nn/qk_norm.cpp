#include "framework/nn/qk_norm.h"

namespace keel::nn {

QkNorm::QkNorm(ParameterSet& parameters, const QkNormSpec& spec) : pass_(spec.pass) {
  pass_.full_width_q = pass_.heads * pass_.head_dim;
  pass_.full_width_k = pass_.kv_heads * pass_.head_dim;
  if (pass_.kind == ops::QkNormKind::none || spec.weight == QkWeight::none) return;
  Init init{Init::Kind::constant, spec.weight_init - (pass_.zero_centered ? 1 : 0)};
  auto shape = [&](int64_t heads) {
    return spec.weight == QkWeight::shared ? Shape{pass_.head_dim} : Shape{heads, pass_.head_dim};
  };
  auto declare = [&](const char* side, int64_t heads) {
    return &parameters.declare(
        {.name = spec.name + side, .shape = shape(heads), .init = init, .decayed = spec.weight_decay});
  };
  q_weight = declare(".q_norm.weight", pass_.heads);
  k_weight = declare(".k_norm.weight", pass_.kv_heads);
}

void QkNorm::set_heads(int64_t heads, int64_t kv_heads, int64_t kv_replicas) {
  pass_.heads = heads;
  pass_.kv_heads = kv_heads;
  pass_.kv_replicas = kv_replicas;
}

ops::QkNormRopeInputs QkNorm::inputs(const Inputs& in) const {
  return {.qkv = in.qkv,
          .q_weight = q_weight ? q_weight->compute : Tensor(),
          .k_weight = k_weight ? k_weight->compute : Tensor(),
          .rope = in.positions.rope,
          .positions = in.positions.rows};
}

void QkNorm::forward(const Heads& out, const Inputs& in, Saved& saved, Context& context) const {
  const ops::QkNormRopeInputs given = inputs(in);
  if (pass_.full()) {
    const int64_t n = in.qkv.size(0);
    saved.statistics = context.saved.take({n, pass_.statistic_columns()}, DType::f32);
    ops::qk_norm_partial_statistics(saved.statistics, given, pass_);
    if (pass_.kind == ops::QkNormKind::layer) {
      auto scope = context.scratch.scope();
      Tensor gathered = context.scratch.take({context.group->size(), n, 4}, DType::f32);
      context.group->gather(gathered, saved.statistics);
      ops::qk_norm_merge_statistics(saved.statistics, gathered, pass_);
    } else {
      context.group->sum(saved.statistics);
    }
  }
  ops::qk_norm_rope_forward(out.q, out.k, given, saved.statistics, pass_);
}

void QkNorm::backward(Tensor d_qkv, const Heads& d_out, const Inputs& in, const Saved& saved, Context& context) const {
  const ops::QkNormRopeBackward call{d_out.q, d_out.k, inputs(in), saved.statistics, pass_};
  auto scope = context.scratch.scope();
  Tensor sums;
  if (pass_.full()) {
    sums = context.scratch.take(saved.statistics.shape(), DType::f32);
    ops::qk_norm_backward_sums(sums, call);
    context.group->sum(sums);
  }
  const ops::QkNormRopeGradients gradients{d_qkv, q_weight ? q_weight->gradient : Tensor(),
                                           k_weight ? k_weight->gradient : Tensor()};
  ops::qk_norm_rope_backward(gradients, call, sums);
}

}  // namespace keel::nn
