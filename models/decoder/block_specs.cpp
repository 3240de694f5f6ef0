#include "models/decoder/block_specs.h"

#include <cmath>

namespace keel::models {
namespace {

nn::QkNormSpec qk_norm_spec(const DecoderConfig& config, int64_t layer, const std::string& name) {
  const QkNormConfig& qk = config.attention.qk_norm;
  return {.name = name,
          .pass = {.heads = config.attention.heads,
                   .kv_heads = config.kv_heads(),
                   .head_dim = config.head_dim(),
                   .rotated = config.layer_has_rope(layer) ? config.rotated_features() : 0,
                   .kind = config.qk_kind(layer),
                   .scope = qk.scope,
                   .eps = float(qk.eps),
                   .zero_centered = qk.zero_centered,
                   .after_rope = qk.placement == QkPlacement::after_rope,
                   .cast_before_weight = qk.cast == QkCast::before_weight},
          .weight = qk.weight,
          .weight_init = qk.weight_init,
          .weight_decay = qk.weight_decay};
}

nn::AttentionSpec attention_spec(const DecoderConfig& config, int64_t layer, double output_scale) {
  const AttentionConfig& attention = config.attention;
  const std::string name = fmt::format("blocks.{}.attention", layer);
  const bool local = config.layer_kind(layer) == LayerKind::local;
  return {.name = name,
          .hidden = config.hidden,
          .heads = attention.heads,
          .kv_heads = config.kv_heads(),
          .head_dim = config.head_dim(),
          .qkv_bias = attention.bias.qkv,
          .output_bias = attention.bias.output,
          .init = matrix_init(config, config.hidden, 1),
          .output_init = matrix_init(config, attention.heads * config.head_dim(), output_scale),
          .qk_norm = qk_norm_spec(config, layer, name),
          .logit_scale = config.scale_kind(layer),
          .initial_scale = config.initial_scale(layer),
          .window = local ? attention.window.value_or(0) : 0,
          .softcap = attention.logit_softcap.value_or(0)};
}

}  // namespace

nn::NormSpec norm_spec(const DecoderConfig& config) {
  return {{config.norm.kind, float(config.norm.eps), config.norm.zero_centered}, config.norm.weight_decay};
}

ops::RopeScaling rope_scaling(const DecoderConfig& config, LayerKind kind) {
  if (kind == LayerKind::local) return {};
  const RopeScalingConfig& s = config.rope.scaling;
  return {.kind = s.kind,
          .factor = s.factor,
          .low_frequency_factor = s.low_frequency_factor,
          .high_frequency_factor = s.high_frequency_factor,
          .original_positions = s.original_positions,
          .beta_fast = s.beta_fast,
          .beta_slow = s.beta_slow,
          .attention_factor = s.attention_factor.value_or(0)};
}

double rope_amplitude(const DecoderConfig& config, int64_t layer) {
  return config.layer_has_rope(layer) ? ops::rope_amplitude(rope_scaling(config, config.layer_kind(layer))) : 1;
}

nn::Init init_of(const DecoderConfig& config, double std) {
  const bool truncated = config.init.kind == InitKind::truncated_3sigma;
  return {truncated ? nn::Init::Kind::truncated_3sigma : nn::Init::Kind::normal, std};
}

nn::Init matrix_init(const DecoderConfig& config, int64_t inputs, double scale) {
  const InitConfig& init = config.init;
  return init_of(config, scale * (init.kind == InitKind::fan_in ? 1 / std::sqrt(double(inputs)) : init.std));
}

nn::EmbeddingSpec embedding_spec(const DecoderConfig& config) {
  double factor = 1;
  if (const double* number = std::get_if<double>(&config.embedding_scale))
    factor = *number;
  else if (std::get<EmbeddingScale>(config.embedding_scale) == EmbeddingScale::sqrt_hidden)
    factor = std::sqrt(double(config.hidden));
  return {.vocabulary = config.padded_vocab(),
          .hidden = config.hidden,
          .learned_positions = config.positions.learned ? config.positions.max_positions : 0,
          .factor = factor,
          .weight_decay = config.embedding_decay,
          .init = init_of(config, config.init.std)};
}

nn::BlockSpec block_spec(const DecoderConfig& config, int64_t layer) {
  const double output_scale =
      config.init.output_scale == OutputScale::depth ? 1 / std::sqrt(2.0 * double(config.layers)) : 1;
  const std::string name = fmt::format("blocks.{}", layer);
  return {.name = name,
          .attention = attention_spec(config, layer, output_scale),
          .mlp = {.name = name + ".mlp",
                  .hidden = config.hidden,
                  .width = config.ffn,
                  .activation = config.mlp.kind,
                  .bias = config.mlp.bias,
                  .init = matrix_init(config, config.hidden, 1),
                  .output_init = matrix_init(config, config.ffn, output_scale)},
          .placement = config.norm.placement,
          .norm = norm_spec(config),
          .parallel = config.parallel_block,
          .recompute = config.recompute};
}

}  // namespace keel::models
