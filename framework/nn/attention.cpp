#include "framework/nn/attention.h"

#include "framework/ops/elementwise.h"
#include "framework/ops/qk_norm/logit_scale.h"

namespace keel::nn {

Attention::Attention(ParameterSet& parameters, const AttentionSpec& attention_spec)
    : spec(attention_spec),
      qkv(parameters,
          {.names = {spec.name + ".q", spec.name + ".k", spec.name + ".v"},
           .outputs = {spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim},
           .inputs = spec.hidden,
           .bias = spec.qkv_bias,
           .init = spec.init,
           .wide = {.dy = true}}),
      qk_norm(parameters, spec.qk_norm),
      logit_scale(spec.logit_scale == LogitScaleKind::fixed
                      ? nullptr
                      : &parameters.declare({.name = spec.name + ".logit_scale.weight",
                                             .shape = {spec.logit_scale == LogitScaleKind::per_head ? spec.heads : 1},
                                             .init = {Init::Kind::constant, 1}})),
      output(parameters, {.names = {spec.name + ".output"},
                          .outputs = {spec.hidden},
                          .inputs = spec.heads * spec.head_dim,
                          .bias = spec.output_bias,
                          .init = spec.output_init}) {}

void Attention::refresh() {
  qkv.refresh();
  output.refresh();
}

ops::AttentionOptions Attention::options() const {
  return {.causal = spec.causal, .window = spec.window, .softcap = float(spec.softcap)};
}

ops::AttentionInputs Attention::heads_of(const Saved& saved, const Inputs& in) const {
  const int64_t B = in.batch.sequences, T = in.batch.length, d = spec.head_dim;
  // v stays in the QKV product: its last G*d columns.
  const int64_t width = (heads() + 2 * kv_heads()) * d;
  ConstTensor heads_of_rows = saved.qkv.reshaped({B, T, heads() + 2 * kv_heads(), d});
  require(saved.qkv.size(1) == width, "the QKV product {} does not hold {} columns", saved.qkv.shape(), width);
  return {.q = saved.q.reshaped({B, T, heads(), d}),
          .k = saved.k.reshaped({B, T, kv_heads(), d}),
          .v = heads_of_rows.slice(2, heads() + kv_heads(), heads() + 2 * kv_heads()),
          .scale = saved.scale,
          .first_key = in.positions.first_key};
}

void Attention::forward_heads(ConstTensor x, const Inputs& in, Saved& saved, Context& context) const {
  const AttentionTelemetry& telemetry = in.telemetry;
  const int64_t B = in.batch.sequences, T = in.batch.length, n = B * T, d = spec.head_dim;
  saved.x = x;
  saved.qkv = context.saved.take({n, qkv.outputs()}, context.activation);
  saved.q = context.saved.take({n, heads(), d}, context.activation);
  saved.k = context.saved.take({n, kv_heads(), d}, context.activation);
  saved.scale = context.saved.take({heads()}, DType::f32);
  saved.out = context.saved.take({n, heads() * d}, context.activation);
  saved.log_sum_exp = context.saved.take({B, heads(), T}, DType::f32);

  qkv.forward(saved.qkv, x);
  if (telemetry.q_squares.defined())
    ops::qk_add_mean_squares(telemetry.q_squares, telemetry.k_squares, saved.qkv, qk_norm.pass());
  qk_norm.forward({saved.q, saved.k}, {saved.qkv, in.positions}, saved.qk_norm, context);
  if (telemetry.observer)
    telemetry.observer->look_at_heads(telemetry.layer, saved.q, saved.k, in.positions.first_key, spec.window);
  ops::logit_scale_forward(saved.scale, logit_scale ? logit_scale->compute : Tensor(), float(spec.initial_scale));
  ops::AttentionOptions wanted = options();
  wanted.first_sequence = telemetry.first_sequence;
  Tensor out = saved.out.reshaped({B, T, heads(), d});
  ops::attention_forward(
      {out, saved.log_sum_exp, telemetry.largest_logit, telemetry.entropy, telemetry.largest_logit_place},
      heads_of(saved, in), wanted);
}

void Attention::forward(Tensor y, ConstTensor x, const Inputs& in, Saved& saved, Context& context) const {
  forward_heads(x, in, saved, context);
  output.forward(y, saved.out, context);
}

void Attention::observe_gains(const ops::HeadGains& gains, double bound_factor) const {
  auto weight_of = [](const Parameter* parameter) { return parameter ? parameter->compute : Tensor(); };
  ops::head_gains(gains, {.q = weight_of(qk_norm.q_weight),
                          .k = weight_of(qk_norm.k_weight),
                          .scale = weight_of(logit_scale),
                          .head_dim = spec.head_dim,
                          .shift = qk_norm.pass().zero_centered ? 1.f : 0.f,
                          .initial_scale = float(spec.initial_scale),
                          .factor = float(bound_factor)});
}

void Attention::backward(Tensor dx, ConstTensor dy, const Inputs& in, const Saved& saved, Context& context) const {
  const int64_t B = in.batch.sequences, T = in.batch.length, n = B * T;
  const int64_t d = spec.head_dim, H = heads(), G = kv_heads();
  auto scope = context.scratch.scope();
  Tensor d_out = context.scratch.take({n, H * d}, context.activation);
  Tensor d_qkv = context.scratch.take_rows(n, (H + 2 * G) * d, context.activation);
  Tensor dq = context.scratch.take({n, H, d}, context.activation);
  Tensor dk = context.scratch.take({n, G, d}, context.activation);
  Tensor d_scale = context.scratch.take({H}, DType::f32);

  output.backward(d_out, dy, saved.out);
  ops::fill(d_scale, 0);
  Tensor dv = d_qkv.reshaped({B, T, H + 2 * G, d}).slice(2, H + G, H + 2 * G);
  ops::attention_backward({dq.reshaped({B, T, H, d}), dk.reshaped({B, T, G, d}), dv, d_scale},
                          d_out.reshaped({B, T, H, d}), {saved.out.reshaped({B, T, H, d}), saved.log_sum_exp, {}, {}},
                          heads_of(saved, in), options());
  if (logit_scale) ops::logit_scale_backward(logit_scale->gradient, d_scale, float(spec.initial_scale));
  qk_norm.backward(d_qkv, {dq, dk}, {saved.qkv, in.positions}, saved.qk_norm, context);
  qkv.backward(dx, d_qkv, saved.x, context);
}

}  // namespace keel::nn
