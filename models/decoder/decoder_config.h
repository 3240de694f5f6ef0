// The `model:` section for `kind: decoder`: a decoder-only transformer, from the default QK-Norm block to every
// published variant of QKNORM.md section 2. Meaning, range and default of every key: decoder_config.cpp and
// configs/README.md.
#pragma once

#include "framework/config/fields.h"
#include "framework/nn/transformer_block.h"
#include "framework/ops/qk_norm/rope_table.h"

namespace keel::ops {

std::vector<std::string> enum_names(QkNormKind);
std::vector<std::string> enum_names(QkNormScope);
std::vector<std::string> enum_names(NormKind);
std::vector<std::string> enum_names(ActivationKind);
std::vector<std::string> enum_names(RopeScaling::Kind);

}  // namespace keel::ops

namespace keel::nn {

std::vector<std::string> enum_names(QkWeight);
std::vector<std::string> enum_names(LogitScaleKind);
std::vector<std::string> enum_names(NormPlacement);
std::vector<std::string> enum_names(Recompute);

}  // namespace keel::nn

namespace keel::models {

using config::Auto;

enum class FamilyKind { decoder };
enum class Preset { none, baseline, llama3, olmo2, qwen3, gemma3, vit22b, henry2020, glm45, llama4 };
std::vector<std::string> enum_names(Preset);
enum class QkPlacement { before_rope, after_rope };
enum class QkLayers { all, rope_only };
enum class QkCast { after_weight, before_weight };
enum class ScaleInit { automatic, log2_length };
enum class LayerKind { global, local };
enum class PositionKind { rope, none };
enum class EmbeddingScale { none, sqrt_hidden };
enum class ResidualType { fp32, bf16 };
enum class InitKind { normal, truncated_3sigma, fan_in };
enum class OutputScale { none, depth };

struct QkNormConfig {
  ops::QkNormKind kind = ops::QkNormKind::rms;
  ops::QkNormScope scope = ops::QkNormScope::head;
  nn::QkWeight weight = nn::QkWeight::per_head;
  double weight_init = 1;
  bool zero_centered = false;
  double eps = 1e-6;
  QkPlacement placement = QkPlacement::before_rope;
  QkLayers layers = QkLayers::all;
  QkCast cast = QkCast::after_weight;
  bool weight_decay = false;
  std::optional<double> clip_weight;
};

struct LogitScaleConfig {
  Auto<nn::LogitScaleKind> kind;
  std::variant<ScaleInit, double> init = ScaleInit::automatic;
  std::optional<int64_t> length;
  std::optional<double> clip;
};

struct BiasConfig {
  bool qkv = false;
  bool output = false;
};

struct AttentionConfig {
  int64_t heads = 0;
  Auto<int64_t> kv_heads;
  Auto<int64_t> head_dim;
  BiasConfig bias;
  std::optional<int64_t> window;
  std::optional<double> logit_softcap;
  QkNormConfig qk_norm;
  LogitScaleConfig logit_scale;
};

struct RopeScalingConfig {
  ops::RopeScaling::Kind kind = ops::RopeScaling::Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_positions = 8192;
  double beta_fast = 32;
  double beta_slow = 1;
  Auto<double> attention_factor;
};

struct RopeConfig {
  double theta = 1e4;
  Auto<double> local_theta;
  double fraction = 1;
  RopeScalingConfig scaling;
};

struct PositionsConfig {
  PositionKind global = PositionKind::rope;
  PositionKind local = PositionKind::rope;
  bool learned = false;
  int64_t max_positions = 4096;
};

struct NormConfig {
  ops::NormKind kind = ops::NormKind::rms;
  double eps = 1e-6;
  bool zero_centered = false;
  nn::NormPlacement placement = nn::NormPlacement::pre;
  bool weight_decay = false;
};

struct MlpConfig {
  ops::ActivationKind kind = ops::ActivationKind::swiglu;
  bool bias = false;
};

struct OutlierConfig {
  int64_t features = 4;
  double factor = 30;
};

struct InitConfig {
  InitKind kind = InitKind::normal;
  double std = 0.02;
  OutputScale output_scale = OutputScale::depth;
  std::optional<OutlierConfig> outliers;
};

struct DecoderConfig {
  FamilyKind kind = FamilyKind::decoder;
  Preset preset = Preset::none;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t ffn = 0;
  Auto<int64_t> vocab;
  int64_t pad_vocab_to = 64;
  AttentionConfig attention;
  std::vector<LayerKind> layer_pattern = {LayerKind::global};
  PositionsConfig positions;
  RopeConfig rope;
  NormConfig norm;
  MlpConfig mlp;
  bool parallel_block = false;
  bool tie_embeddings = false;
  std::variant<EmbeddingScale, double> embedding_scale = EmbeddingScale::none;
  bool embedding_decay = true;
  std::optional<double> final_softcap;
  ResidualType residual = ResidualType::fp32;
  InitConfig init;
  nn::Recompute recompute = nn::Recompute::none;

  int64_t kv_heads() const { return attention.kv_heads.value_or(attention.heads); }
  int64_t head_dim() const { return attention.head_dim.value_or(attention.heads ? hidden / attention.heads : 0); }
  int64_t padded_vocab() const { return (vocab.value() + pad_vocab_to - 1) / pad_vocab_to * pad_vocab_to; }
  int64_t rotated_features() const { return int64_t(rope.fraction * double(head_dim())); }
  LayerKind layer_kind(int64_t layer) const { return layer_pattern[size_t(layer) % layer_pattern.size()]; }
  bool layer_has_rope(int64_t layer) const;
  // QK-Norm's kind in that layer: none where `qk_norm.layers` leaves it out.
  ops::QkNormKind qk_kind(int64_t layer) const;
  nn::LogitScaleKind scale_kind(int64_t layer) const;
  // g0 of QKNORM.md section 1.
  double initial_scale(int64_t layer) const;
};

void describe(config::Fields& fields, DecoderConfig& c);

// The strict reading of a `model:` section: the preset's values first, a key in the file wins, then the rules that span
// several keys (configs/README.md, "Which combinations are legal").
DecoderConfig read_decoder_config(const config::Node& model, std::span<const config::KnownKey> elsewhere = {});
// The QK-Norm variant in words, which a checkpoint records: "rms, scope head, weight per_head, ...".
std::string qk_norm_text(const DecoderConfig& c);
// The preset's values over the defaults.
void apply_preset(DecoderConfig& c, Preset preset);

}  // namespace keel::models
