// The published blocks of QKNORM.md section 2, without sizes. What differs by size (windows, RoPE factors, tied heads)
// is set in configs/families.
#include "models/decoder/decoder_config.h"

namespace keel::models {
namespace {

// Llama's block, which most others start from: pre-norm RMS, SwiGLU, GQA, RoPE, no biases, no QK-Norm.
void baseline(DecoderConfig& c) {
  c.attention.qk_norm.kind = ops::QkNormKind::none;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
}

void llama3(DecoderConfig& c) {
  baseline(c);
  c.norm.eps = 1e-5;
  c.rope.theta = 5e5;
  c.rope.scaling.kind = ops::RopeScaling::Kind::llama3;
  c.rope.scaling.factor = 8;
}

void olmo2(DecoderConfig& c) {
  c.attention.qk_norm.scope = ops::QkNormScope::full;
  c.attention.qk_norm.weight_decay = true;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  c.norm.placement = nn::NormPlacement::post;
  c.norm.weight_decay = true;
  c.embedding_decay = false;
  c.rope.theta = 5e5;
  c.init = {InitKind::truncated_3sigma, 0.02, OutputScale::none};
}

void qwen3(DecoderConfig& c) {
  c.attention.head_dim = int64_t(128);
  c.attention.qk_norm.weight = nn::QkWeight::shared;
  c.attention.qk_norm.cast = QkCast::before_weight;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  c.rope.theta = 1e6;
}

void gemma3(DecoderConfig& c) {
  c.attention.head_dim = int64_t(256);
  c.attention.window = 512;
  c.attention.qk_norm.weight = nn::QkWeight::shared;
  c.attention.qk_norm.zero_centered = true;
  c.attention.logit_scale = {nn::LogitScaleKind::fixed, 1.0 / 16, {}, {}};  // query_pre_attn_scalar 256
  c.layer_pattern.assign(5, LayerKind::local);
  c.layer_pattern.push_back(LayerKind::global);
  c.rope.theta = 1e6;
  c.rope.local_theta = 1e4;
  c.norm.zero_centered = true;
  c.norm.placement = nn::NormPlacement::sandwich;
  c.mlp.kind = ops::ActivationKind::geglu;
  c.tie_embeddings = true;
  c.embedding_scale = EmbeddingScale::sqrt_hidden;
}

// Its block norms are "without bias and centering" (Dehghani et al. 2023): RMS norms. Its QK-Norm subtracts the mean.
void vit22b(DecoderConfig& c) {
  c.attention.qk_norm.kind = ops::QkNormKind::layer;
  c.attention.qk_norm.weight = nn::QkWeight::shared;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  c.attention.bias = {false, true};
  c.positions = {PositionKind::none, PositionKind::none, true, 4096};
  c.mlp = {ops::ActivationKind::gelu, true};
  c.parallel_block = true;
}

void henry2020(DecoderConfig& c) {
  c.attention.qk_norm.kind = ops::QkNormKind::l2;
  c.attention.qk_norm.weight = nn::QkWeight::none;
  c.attention.qk_norm.eps = 1e-12;
  c.attention.logit_scale.kind = nn::LogitScaleKind::per_layer;
  c.attention.logit_scale.init = ScaleInit::log2_length;
  c.attention.bias = {true, true};
  c.norm.kind = ops::NormKind::layer;
  c.positions = {PositionKind::none, PositionKind::none, true, 4096};
  c.mlp = {ops::ActivationKind::gelu, true};
}

void glm45(DecoderConfig& c) {
  c.attention.head_dim = int64_t(128);
  c.attention.qk_norm.weight = nn::QkWeight::shared;
  c.attention.qk_norm.eps = 1e-5;
  c.attention.qk_norm.cast = QkCast::before_weight;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  c.attention.bias.qkv = true;
  c.norm.eps = 1e-5;
  c.rope.theta = 1e6;
  c.rope.fraction = 0.5;
}

void llama4(DecoderConfig& c) {
  c.attention.qk_norm.weight = nn::QkWeight::none;
  c.attention.qk_norm.layers = QkLayers::rope_only;
  c.attention.qk_norm.placement = QkPlacement::after_rope;
  c.attention.qk_norm.eps = 1e-5;
  c.attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  c.norm.eps = 1e-5;
  c.rope.theta = 5e5;
}

}  // namespace

void apply_preset(DecoderConfig& c, Preset preset) {
  switch (preset) {
    case Preset::none:
      break;
    case Preset::baseline:
      baseline(c);
      break;
    case Preset::llama3:
      llama3(c);
      break;
    case Preset::olmo2:
      olmo2(c);
      break;
    case Preset::qwen3:
      qwen3(c);
      break;
    case Preset::gemma3:
      gemma3(c);
      break;
    case Preset::vit22b:
      vit22b(c);
      break;
    case Preset::henry2020:
      henry2020(c);
      break;
    case Preset::glm45:
      glm45(c);
      break;
    case Preset::llama4:
      llama4(c);
      break;
  }
  c.preset = preset;
}

}  // namespace keel::models
