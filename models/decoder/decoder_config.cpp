// The description of every key of `model:`; configs/README.md is generated from it.
#include "models/decoder/decoder_config.h"

#include <cmath>

namespace keel::ops {

std::vector<std::string> enum_names(QkNormKind) {
  return {"none", "l2", "rms", "layer"};
}
std::vector<std::string> enum_names(QkNormScope) {
  return {"head", "full"};
}
std::vector<std::string> enum_names(NormKind) {
  return {"rms", "layer"};
}
std::vector<std::string> enum_names(ActivationKind) {
  return {"swiglu", "geglu", "gelu"};
}
std::vector<std::string> enum_names(RopeScaling::Kind) {
  return {"none", "linear", "llama3", "yarn"};
}

}  // namespace keel::ops

namespace keel::nn {

std::vector<std::string> enum_names(QkWeight) {
  return {"none", "shared", "per_head"};
}
std::vector<std::string> enum_names(LogitScaleKind) {
  return {"fixed", "per_layer", "per_head"};
}
std::vector<std::string> enum_names(NormPlacement) {
  return {"pre", "post", "sandwich"};
}
std::vector<std::string> enum_names(Recompute) {
  return {"none", "attention", "block"};
}

}  // namespace keel::nn

namespace keel::models {

using config::above;
using config::at_least;
using config::between;
using config::Fields;
using enum config::OnResume;

std::vector<std::string> enum_names(FamilyKind) {
  return {"decoder"};
}
std::vector<std::string> enum_names(Preset) {
  return {"none", "baseline", "llama3", "olmo2", "qwen3", "gemma3", "vit22b", "henry2020", "glm45", "llama4"};
}
std::vector<std::string> enum_names(QkPlacement) {
  return {"before_rope", "after_rope"};
}
std::vector<std::string> enum_names(QkLayers) {
  return {"all", "rope_only"};
}
std::vector<std::string> enum_names(QkCast) {
  return {"after_weight", "before_weight"};
}
std::vector<std::string> enum_names(ScaleInit) {
  return {"auto", "log2_length"};
}
std::vector<std::string> enum_names(LayerKind) {
  return {"global", "local"};
}
std::vector<std::string> enum_names(PositionKind) {
  return {"rope", "none"};
}
std::vector<std::string> enum_names(EmbeddingScale) {
  return {"none", "sqrt_hidden"};
}
std::vector<std::string> enum_names(ResidualType) {
  return {"fp32", "bf16"};
}
std::vector<std::string> enum_names(InitKind) {
  return {"normal", "truncated_3sigma", "fan_in"};
}
std::vector<std::string> enum_names(OutputScale) {
  return {"none", "1/sqrt(2L)"};
}

void describe(Fields& fields, QkNormConfig& c) {
  fields.add("kind", c.kind, {.doc = "How the rows of q and k are normalised; none is the unnormalised control."});
  fields.add("scope", c.scope,
             {.doc = "Statistic over the features of one head, or over all heads' features (OLMo 2)."});
  fields.add("weight", c.weight,
             {.doc = "Gains: none, one vector [d] for all heads, or one per head [H, d] and [G, d]."});
  fields.add("weight_init", c.weight_init, {.doc = "Effective gain at the start."});
  fields.add("zero_centered", c.zero_centered, {.doc = "The stored weight w means a gain of 1 + w (Gemma)."});
  fields.add("eps", c.eps,
             {.doc = "Inside the root for rms and layer; for l2 a floor on the length.", .range = at_least(0)});
  fields.add("placement", c.placement, {.doc = "Before or after the rotation."});
  fields.add("layers", c.layers, {.doc = "All layers, or only those with RoPE (Llama 4)."});
  fields.add("cast", c.cast,
             {.doc = "Round to the activation type after the weight (OLMo 2, Gemma 3) or before it (Qwen3, GLM-4.5)."});
  fields.add("weight_decay", c.weight_decay, {.doc = "Whether the gains are decayed (OLMo 2's released recipe does)."});
  fields.add("clip_weight", c.clip_weight,
             {.doc = "Largest |gain| after each update; with a learned scale needs logit_scale.clip too.",
              .range = above(0),
              .on_resume = changeable});
}

void describe(Fields& fields, LogitScaleConfig& c) {
  fields.add("kind", c.kind,
             {.doc = "The scale g of s = g (q . k): fixed, learned per layer or per head; auto: fixed where "
                     "qk_norm.kind is none, else per_head."});
  fields.add("init", c.init,
             {.doc = "g at the start: auto is 1/sqrt(d) for none, rms and layer, sqrt(d) for l2 (sqrt(d H G) with "
                     "scope full); log2_length is log2(n^2 - n)."});
  fields.add("length", c.length,
             {.doc = "That n: the 97.5th percentile of sequence lengths (Henry et al. 2020).",
              .unit = "tokens",
              .range = at_least(2)});
  fields.add(
      "clip", c.clip,
      {.doc = "Largest |g| after each update; needs a learned scale.", .range = above(0), .on_resume = changeable});
}

void describe(Fields& fields, BiasConfig& c) {
  fields.add("qkv", c.qkv, {.doc = "Biases on the q, k and v projections."});
  fields.add("output", c.output, {.doc = "A bias on the output projection."});
}

void describe(Fields& fields, AttentionConfig& c) {
  fields.add("heads", c.heads,
             {.doc = "Query heads H.",
              .range = at_least(1),
              .required = true,
              .synonyms = {"num_heads", "n_heads", "num_attention_heads"}});
  fields.add("kv_heads", c.kv_heads,
             {.doc = "Key/value heads G; divides heads.",
              .range = at_least(1),
              .default_text = "heads",
              .synonyms = {"num_key_value_heads", "n_kv_heads"}});
  fields.add("head_dim", c.head_dim,
             {.doc = "Head size d; needs not be hidden/heads.",
              .range = between(1, 256),
              .default_text = "hidden / heads",
              .synonyms = {"head_size"}});
  fields.add("bias", c.bias, {.doc = "Biases by place."});
  fields.add("window", c.window,
             {.doc = "Keys that a token of a local layer sees, itself counted; null: no limit.",
              .unit = "tokens",
              .range = at_least(1),
              .synonyms = {"sliding_window"}});
  fields.add("logit_softcap", c.logit_softcap,
             {.doc = "cap * tanh(s / cap), before the mask; null: none.",
              .range = above(0),
              .synonyms = {"attn_logit_softcapping"}});
  fields.add("qk_norm", c.qk_norm, {.doc = "Query-Key Normalization."});
  fields.add("logit_scale", c.logit_scale, {.doc = "The scale g of the logits."});
}

void describe(Fields& fields, RopeScalingConfig& c) {
  fields.add(
      "kind", c.kind,
      {.doc = "How frequencies are stretched for longer contexts: linear; llama3; yarn, also called NTK by parts."});
  fields.add("factor", c.factor, {.doc = "By how much.", .range = at_least(1)});
  fields.add("low_frequency_factor", c.low_frequency_factor, {.doc = "llama3 only.", .range = above(0)});
  fields.add("high_frequency_factor", c.high_frequency_factor, {.doc = "llama3 only.", .range = above(0)});
  fields.add("original_positions", c.original_positions,
             {.doc = "Context the model was trained with; llama3 and yarn.", .unit = "tokens", .range = at_least(1)});
  fields.add("beta_fast", c.beta_fast,
             {.doc = "yarn only: pairs that turn more often than this within that context are left alone.",
              .unit = "turns",
              .range = above(0)});
  fields.add("beta_slow", c.beta_slow,
             {.doc = "yarn only: pairs that turn less often than this are stretched by the whole factor.",
              .unit = "turns",
              .range = above(0)});
  fields.add(
      "attention_factor", c.attention_factor,
      {.doc = "yarn only: multiplies cosines and sines.", .range = above(0), .default_text = "0.1 ln(factor) + 1"});
}

void describe(Fields& fields, RopeConfig& c) {
  fields.add("theta", c.theta,
             {.doc = "Base of the angles: p * theta^(-2i/rotated).", .range = above(1), .synonyms = {"rope_theta"}});
  fields.add("local_theta", c.local_theta,
             {.doc = "The same in local layers.", .range = above(1), .default_text = "theta"});
  fields.add("fraction", c.fraction,
             {.doc = "Share of each head's features that turn, the first ones.",
              .range = {.low = 0, .high = 1, .low_open = true},
              .synonyms = {"partial_rotary_factor"}});
  fields.add("scaling", c.scaling, {.doc = "Frequency scaling of global layers; local ones are never scaled."});
}

void describe(Fields& fields, PositionsConfig& c) {
  fields.add("global", c.global, {.doc = "Rotation in global layers."});
  fields.add("local", c.local, {.doc = "Rotation in local layers."});
  fields.add("learned", c.learned, {.doc = "A learned absolute position table, added to the embedding."});
  fields.add("max_positions", c.max_positions,
             {.doc = "Rows of the learned table: the longest sequence.",
              .unit = "tokens",
              .range = at_least(1),
              .synonyms = {"max_position_embeddings"}});
}

void describe(Fields& fields, NormConfig& c) {
  fields.add("kind", c.kind, {.doc = "RMS norm or layer norm around the sub-layers."});
  fields.add("eps", c.eps, {.doc = "Inside the root.", .range = at_least(0)});
  fields.add("zero_centered", c.zero_centered, {.doc = "The stored weight w means a gain of 1 + w (Gemma)."});
  fields.add("placement", c.placement, {.doc = "Before each sub-layer, after it (OLMo 2), or both (Gemma)."});
  fields.add("weight_decay", c.weight_decay,
             {.doc = "Whether these gains and biases are decayed (OLMo 2's released recipe does)."});
}

void describe(Fields& fields, MlpConfig& c) {
  fields.add("kind", c.kind, {.doc = "Activation; swiglu and geglu are gated, gelu is the tanh form."});
  fields.add("bias", c.bias, {.doc = "Biases on the feed-forward projections."});
}

void describe(Fields& fields, OutlierConfig& c) {
  fields.add("features", c.features, {.doc = "How many, the first ones.", .range = config::at_least(1)});
  fields.add("factor", c.factor,
             {.doc = "What embeddings have in them, relative to others.", .range = config::above(0)});
}

void describe(Fields& fields, InitConfig& c) {
  fields.add("kind", c.kind,
             {.doc = "Distribution of initial matrices; fan_in is normal with deviation 1/sqrt(inputs)."});
  fields.add("std", c.std, {.doc = "Standard deviation; embeddings use it with fan_in too.", .range = above(0)});
  fields.add("output_scale", c.output_scale, {.doc = "Factor on the output and down projections."});
  fields.add("outliers", c.outliers,
             {.doc = "Outlier features planted in the residual stream, for studies; null: none."});
}

void describe(Fields& fields, DecoderConfig& c) {
  fields.add("kind", c.kind, {.doc = "The model family."});
  fields.add("preset", c.preset,
             {.doc = "Fills in a published family's block (not its sizes); a key in the file wins."});
  fields.add("hidden", c.hidden,
             {.doc = "Width D of the residual stream.",
              .range = at_least(1),
              .required = true,
              .synonyms = {"hidden_size", "d_model", "n_embd"}});
  fields.add("layers", c.layers,
             {.doc = "Blocks L.",
              .range = at_least(1),
              .required = true,
              .synonyms = {"num_layers", "n_layers", "num_hidden_layers"}});
  fields.add("ffn", c.ffn,
             {.doc = "Width F of the feed-forward layer.",
              .range = at_least(1),
              .required = true,
              .synonyms = {"intermediate_size", "ffn_hidden", "d_ff"}});
  fields.add("vocab", c.vocab,
             {.doc = "Vocabulary size V.",
              .unit = "ids",
              .range = at_least(2),
              .default_text = "the training data's",
              .synonyms = {"vocab_size", "vocabulary"}});
  fields.add("pad_vocab_to", c.pad_vocab_to,
             {.doc = "Tables are padded to a multiple of this; padding gets no probability.",
              .unit = "ids",
              .range = at_least(1)});
  fields.add("attention", c.attention, {.doc = "Heads and QK-Norm."});
  fields.add("layer_pattern", c.layer_pattern, {.doc = "Kinds of layers, repeated over the depth."});
  fields.add("positions", c.positions, {.doc = "How layers know positions."});
  fields.add("rope", c.rope, {.doc = "Rotary positions, pairs (i, i + rotated/2)."});
  fields.add("norm", c.norm, {.doc = "Norms around the sub-layers and before the head."});
  fields.add("mlp", c.mlp, {.doc = "The feed-forward layer."});
  fields.add("parallel_block", c.parallel_block,
             {.doc = "Attention and feed-forward side by side after one norm (ViT-22B)."});
  fields.add("tie_embeddings", c.tie_embeddings, {.doc = "The head is the embedding table."});
  fields.add("embedding_scale", c.embedding_scale, {.doc = "Factor on embeddings."});
  fields.add("embedding_decay", c.embedding_decay,
             {.doc = "Whether embedding tables are decayed (OLMo 2's released recipe spares them)."});
  fields.add("final_softcap", c.final_softcap,
             {.doc = "cap * tanh(logit / cap) before the loss; null: none.", .range = above(0)});
  fields.add("residual", c.residual, {.doc = "Type of the residual stream in bf16 runs."});
  fields.add("init", c.init, {.doc = "Initial values, a function of seed, name and index alone."});
  fields.add("recompute", c.recompute,
             {.doc = "What backward computes again instead of keeping; the same bits in all.", .on_resume = ignored});
}

bool DecoderConfig::layer_has_rope(int64_t layer) const {
  return (layer_kind(layer) == LayerKind::global ? positions.global : positions.local) == PositionKind::rope;
}

ops::QkNormKind DecoderConfig::qk_kind(int64_t layer) const {
  const bool left_out = attention.qk_norm.layers == QkLayers::rope_only && !layer_has_rope(layer);
  return left_out ? ops::QkNormKind::none : attention.qk_norm.kind;
}

nn::LogitScaleKind DecoderConfig::scale_kind(int64_t layer) const {
  return attention.logit_scale.kind.value_or(qk_kind(layer) == ops::QkNormKind::none ? nn::LogitScaleKind::fixed
                                                                                     : nn::LogitScaleKind::per_head);
}

double DecoderConfig::initial_scale(int64_t layer) const {
  if (const double* number = std::get_if<double>(&attention.logit_scale.init)) return *number;
  if (std::get<ScaleInit>(attention.logit_scale.init) == ScaleInit::log2_length) {
    const double n = double(attention.logit_scale.length.value());
    return std::log2(n * n - n);
  }
  const double d = double(head_dim());
  if (qk_kind(layer) != ops::QkNormKind::l2) return 1 / std::sqrt(d);
  if (attention.qk_norm.scope == ops::QkNormScope::head) return std::sqrt(d);
  return std::sqrt(d * double(attention.heads) * double(kv_heads()));
}

std::string qk_norm_text(const DecoderConfig& c) {
  const config::Node qk = config::to_node(c)["attention"]["qk_norm"];
  if (qk["kind"].text() == "none") return "none";
  std::string text = qk["kind"].text();
  for (const char* key : {"scope", "weight", "zero_centered", "placement", "layers"})
    text += fmt::format(", {} {}", key, qk[key].text());
  return text;
}

}  // namespace keel::models
