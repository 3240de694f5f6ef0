// The rules that span several keys of `model:`, and the reading that applies them.
#include <cmath>

#include "framework/base/log.h"
#include "models/decoder/decoder_config.h"

namespace keel::models {
namespace {

using config::Node;

void check_sizes(const DecoderConfig& c, const Node& model) {
  const Node attention = model["attention"];
  const int64_t H = c.attention.heads, G = c.kv_heads();
  if (H % G != 0) throw attention["kv_heads"].error("{} KV heads do not divide {} heads", G, H);
  if (c.attention.head_dim.is_auto() && c.hidden % H != 0)
    throw attention["heads"].error("hidden {} is not a multiple of {} heads: give model.attention.head_dim", c.hidden,
                                   H);
  if (c.head_dim() > 256)
    throw attention["heads"].error("a head size of {} is above 256: use more heads", c.head_dim());
  const bool turns = c.positions.global == PositionKind::rope || c.positions.local == PositionKind::rope;
  if (turns && (c.rotated_features() < 2 || c.rotated_features() % 2 != 0))
    throw model["rope"]["fraction"].error("{} of a head size of {} is {} features, and pairs turn: they must be even",
                                          c.rope.fraction, c.head_dim(), c.rotated_features());
  if (c.layer_pattern.empty()) throw model["layer_pattern"].error("needs at least one kind of layer");
  bool local = false;
  for (LayerKind kind : c.layer_pattern) local |= kind == LayerKind::local;
  const bool differs = c.attention.window || c.positions.local != c.positions.global || !c.rope.local_theta.is_auto();
  if (local && !differs)
    throw model["layer_pattern"].error(
        "local layers are no different from global ones: give model.attention.window, positions.local or "
        "rope.local_theta");
  if (!local && c.attention.window)
    throw attention["window"].error(
        "has no effect: model.layer_pattern has no local layer (layer_pattern: [local] windows all)");
  if (!local && c.positions.local != c.positions.global)
    throw model["positions"]["local"].error("has no effect: model.layer_pattern has no local layer");
  if (c.init.outliers && c.init.outliers->features > c.hidden)
    throw model["init"]["outliers"].error("{} features are more than hidden {}", c.init.outliers->features, c.hidden);
  if (c.parallel_block && c.norm.placement != nn::NormPlacement::pre)
    throw model["parallel_block"].error("needs model.norm.placement: pre");
}

void check_qk_norm(const DecoderConfig& c, const Node& qk) {
  const QkNormConfig& q = c.attention.qk_norm;
  if (q.kind == ops::QkNormKind::none) {
    if (q.clip_weight) throw qk["clip_weight"].error("there are no gains to clip: qk_norm.kind is none");
    return;
  }
  if (q.scope == ops::QkNormScope::full && q.weight == nn::QkWeight::shared)
    throw qk["weight"].error("scope full has one weight per feature of all heads: weight must be per_head or none");
  if (q.weight == nn::QkWeight::none && (q.zero_centered || q.weight_decay || q.clip_weight || q.weight_init != 1))
    throw qk["weight"].error(
        "there are no gains, so zero_centered, weight_init, weight_decay and clip_weight have no effect");
  if (q.kind == ops::QkNormKind::l2 && q.eps == 0) throw qk["eps"].error("l2 needs a floor above 0, such as 1e-12");
  if (q.weight != nn::QkWeight::none && q.weight_init == 0)
    throw qk["weight_init"].error(
        "must not be 0, or q and k stay 0 for ever: it is the gain itself, also with zero_centered, where the stored "
        "weight starts at weight_init - 1");
  if (q.clip_weight && std::abs(q.weight_init) > *q.clip_weight)
    throw qk["clip_weight"].error("{} is below abs(weight_init) {}", *q.clip_weight, std::abs(q.weight_init));
  bool anywhere = false;
  for (int64_t layer = 0; layer < c.layers; ++layer) anywhere |= c.qk_kind(layer) != ops::QkNormKind::none;
  if (!anywhere) throw qk["layers"].error("rope_only leaves every layer out: none has RoPE");
  if (q.placement == QkPlacement::after_rope && q.weight != nn::QkWeight::none)
    log::warning("{}: gains that differ within a rotated pair lose relative positions when placement is after_rope",
                 qk.path());
}

void check_scale(const DecoderConfig& c, const Node& scale) {
  const LogitScaleConfig& s = c.attention.logit_scale;
  const bool by_length = s.init == std::variant<ScaleInit, double>(ScaleInit::log2_length);
  if (by_length && !s.length) throw scale["init"].error("log2_length needs model.attention.logit_scale.length");
  if (!by_length && s.length) throw scale["length"].error("is only used with init: log2_length");
  bool learned = false, clipped_gain = c.attention.qk_norm.clip_weight.has_value();
  for (int64_t layer = 0; layer < c.layers; ++layer) learned |= c.scale_kind(layer) != nn::LogitScaleKind::fixed;
  if (s.clip && !learned) throw scale["clip"].error("there is no learned scale to clip");
  if (clipped_gain && learned && !s.clip)
    throw scale.error(
        "qk_norm.clip_weight bounds nothing while the scale is learned: give model.attention.logit_scale.clip too");
  for (int64_t layer = 0; s.clip && layer < c.layers; ++layer)
    if (c.scale_kind(layer) != nn::LogitScaleKind::fixed && std::abs(c.initial_scale(layer)) > *s.clip)
      throw scale["clip"].error("{} is below the scale's start of {} in layer {}", *s.clip, c.initial_scale(layer),
                                layer);
  if (const double* number = std::get_if<double>(&s.init); number && *number == 0)
    throw scale["init"].error("must not be 0");
}

// `preset`: the scaling that the preset filled in; its factor means nothing where the file takes the kind away.
void check_rope_scaling(const RopeScalingConfig& s, const RopeScalingConfig& preset, const Node& scaling) {
  using Kind = ops::RopeScaling::Kind;
  if (s.kind == Kind::none && s.factor != 1 && s.factor != preset.factor)
    throw scaling["factor"].error("{} has no effect: give model.rope.scaling.kind too", s.factor);
  if (s.kind != Kind::yarn && !s.attention_factor.is_auto())
    throw scaling["attention_factor"].error("is only used with kind: yarn");
  if (s.kind == Kind::llama3 && s.low_frequency_factor >= s.high_frequency_factor)
    throw scaling["low_frequency_factor"].error("{} must be below high_frequency_factor {}", s.low_frequency_factor,
                                                s.high_frequency_factor);
  if (s.kind == Kind::yarn && s.beta_slow > s.beta_fast)
    throw scaling["beta_slow"].error("{} must be at most beta_fast {}", s.beta_slow, s.beta_fast);
}

}  // namespace

DecoderConfig read_decoder_config(const Node& model, std::span<const config::KnownKey> elsewhere) {
  DecoderConfig c;
  // Two readings: the first, over the defaults, is only for `preset`; the second lays the file over that preset.
  config::read(model, c, elsewhere);
  const Preset preset = c.preset;
  c = {};
  apply_preset(c, preset);
  const RopeScalingConfig preset_scaling = c.rope.scaling;
  config::read(model, c, elsewhere);
  check_sizes(c, model);
  check_qk_norm(c, model["attention"]["qk_norm"]);
  check_scale(c, model["attention"]["logit_scale"]);
  check_rope_scaling(c.rope.scaling, preset_scaling, model["rope"]["scaling"]);
  return c;
}

}  // namespace keel::models
