#include "models/decoder/essence.h"

#include <algorithm>
#include <cmath>

namespace keel::models {
namespace {

// The scale as the number that it is, to what a root and its square lose.
void settle_scale(DecoderConfig& c) {
  LogitScaleConfig& scale = c.attention.logit_scale;
  scale.clip = {};
  if (c.attention.qk_norm.layers != QkLayers::all) return;  // it may differ from layer to layer
  const double g0 = c.initial_scale(0);
  scale = {c.scale_kind(0), double(float(g0)), {}, {}};
}

// What the kind of scaling at hand does not use is what it is by default.
RopeScalingConfig used(const RopeScalingConfig& s) {
  using Kind = ops::RopeScaling::Kind;
  RopeScalingConfig out;
  out.kind = s.kind;
  if (s.kind != Kind::none) out.factor = s.factor;
  if (s.kind == Kind::llama3 || s.kind == Kind::yarn) out.original_positions = s.original_positions;
  if (s.kind == Kind::llama3) {
    out.low_frequency_factor = s.low_frequency_factor;
    out.high_frequency_factor = s.high_frequency_factor;
  }
  if (s.kind != Kind::yarn) return out;
  out.beta_fast = s.beta_fast;
  out.beta_slow = s.beta_slow;
  out.attention_factor = s.attention_factor.value_or(0.1 * std::log(s.factor) + 1);
  return out;
}

void settle_layers(DecoderConfig& c) {
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < c.layers; ++layer) kinds.push_back(c.layer_kind(layer));
  const bool local = std::ranges::find(kinds, LayerKind::local) != kinds.end();
  c.layer_pattern = kinds;
  c.rope.local_theta = local ? Auto<double>(c.rope.local_theta.value_or(c.rope.theta)) : Auto<double>();
  c.rope.scaling = used(c.rope.scaling);
}

DecoderConfig essence(DecoderConfig c) {
  const DecoderConfig none;
  c.preset = none.preset;
  c.pad_vocab_to = none.pad_vocab_to;
  c.attention.kv_heads = c.kv_heads();
  c.attention.head_dim = c.head_dim();
  settle_scale(c);
  QkNormConfig& qk = c.attention.qk_norm;
  qk.weight_init = none.attention.qk_norm.weight_init;
  qk.weight_decay = none.attention.qk_norm.weight_decay;
  qk.clip_weight = {};
  if (qk.kind == ops::QkNormKind::none) qk = {.kind = ops::QkNormKind::none};
  settle_layers(c);
  if (!c.positions.learned) c.positions.max_positions = none.positions.max_positions;
  c.norm.weight_decay = none.norm.weight_decay;
  c.embedding_decay = none.embedding_decay;
  c.residual = none.residual;
  c.init = none.init;
  c.recompute = none.recompute;
  return c;
}

void add(std::vector<config::Difference>& out, const config::Node& stored, const config::Node& now) {
  for (const std::string& key : now.keys()) {
    const bool section = now[key].kind() == config::Node::Kind::map && now[key].size() > 0;
    if (section && stored[key].kind() == config::Node::Kind::map)
      add(out, stored[key], now[key]);
    else if (config::print_line(now[key]) != config::print_line(stored[key]))
      out.push_back({now[key].path(), config::print_line(stored[key]), config::print_line(now[key])});
  }
}

}  // namespace

std::vector<config::Difference> differences_of_functions(const DecoderConfig& stored, const DecoderConfig& now) {
  const auto tree = [](const DecoderConfig& c) {
    return config::parse(config::print(config::to_node(essence(c))), "model");
  };
  std::vector<config::Difference> out;
  add(out, tree(stored), tree(now));
  return out;
}

}  // namespace keel::models
