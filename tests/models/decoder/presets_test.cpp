// The presets, row by row of QKNORM.md section 2, with what the published models add: every value of a block is
// compared, those that a row leaves out with the defaults.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "models/decoder/decoder_config.h"

namespace keel::models {
namespace {

struct Row {
  const char* preset;
  const char* block;       // the whole of it, without a preset
  double initial_scale;    // g0 of the first layer
  const char* given = "";  // what a config must say beside the preset
};

const Row kRows[] = {
    {"baseline",
     "attention: {heads: 4, bias: {qkv: false, output: false}, qk_norm: {kind: none}, logit_scale: {kind: fixed}}, "
     "rope: {theta: 1e4, fraction: 1, scaling: {kind: none}}, positions: {global: rope, local: rope, learned: false}, "
     "norm: {kind: rms, eps: 1e-6, placement: pre}, mlp: {kind: swiglu, bias: false}, parallel_block: false, "
     "tie_embeddings: false",
     0.25},
    {"llama3",
     "attention: {heads: 4, bias: {qkv: false, output: false}, qk_norm: {kind: none}, logit_scale: {kind: fixed}}, "
     "rope: {theta: 5e5, fraction: 1, scaling: {kind: llama3, factor: 8, low_frequency_factor: 1, "
     "high_frequency_factor: 4, original_positions: 8192}}, "
     "norm: {kind: rms, eps: 1e-5, placement: pre}, mlp: {kind: swiglu, bias: false}",
     0.25},
    {"henry2020",
     "attention: {heads: 4, bias: {qkv: true, output: true}, "
     "qk_norm: {kind: l2, scope: head, weight: none, eps: 1e-12}, "
     "logit_scale: {kind: per_layer, init: log2_length, length: 72}}, "
     "positions: {global: none, local: none, learned: true, max_positions: 4096}, "
     "norm: {kind: layer, eps: 1e-6, placement: pre}, mlp: {kind: gelu, bias: true}",
     12.319672120946995,  // log2(72 * 71)
     ", logit_scale: {length: 72}"},
    {"vit22b",
     "attention: {heads: 4, bias: {qkv: false, output: true}, "
     "qk_norm: {kind: layer, scope: head, weight: shared, eps: 1e-6, zero_centered: false}, "
     "logit_scale: {kind: fixed}}, "
     "positions: {global: none, local: none, learned: true, max_positions: 4096}, "
     "norm: {kind: rms, placement: pre}, mlp: {kind: gelu, bias: true}, parallel_block: true",
     0.25},
    {"olmo2",
     "attention: {heads: 4, bias: {qkv: false, output: false}, "
     "qk_norm: {kind: rms, scope: full, weight: per_head, cast: after_weight, eps: 1e-6, placement: before_rope, "
     "weight_decay: true}, logit_scale: {kind: fixed}}, "
     "rope: {theta: 5e5, scaling: {kind: none}}, norm: {kind: rms, eps: 1e-6, placement: post, weight_decay: true}, "
     "mlp: {kind: swiglu, bias: false}, embedding_decay: false, "
     "init: {kind: truncated_3sigma, std: 0.02, output_scale: none}",
     0.25},
    {"qwen3",
     "attention: {heads: 4, head_dim: 128, bias: {qkv: false, output: false}, "
     "qk_norm: {kind: rms, scope: head, weight: shared, cast: before_weight, eps: 1e-6, placement: before_rope}, "
     "logit_scale: {kind: fixed}}, "
     "rope: {theta: 1e6, fraction: 1}, norm: {kind: rms, placement: pre}, mlp: {kind: swiglu, bias: false}",
     0.08838834764831845},  // 1/sqrt(128)
    {"gemma3",
     "attention: {heads: 4, head_dim: 256, window: 512, bias: {qkv: false, output: false}, "
     "qk_norm: {kind: rms, scope: head, weight: shared, zero_centered: true, cast: after_weight, eps: 1e-6, "
     "placement: before_rope}, logit_scale: {kind: fixed, init: 0.0625}}, "
     "layer_pattern: [local, local, local, local, local, global], rope: {theta: 1e6, local_theta: 1e4}, "
     "norm: {kind: rms, eps: 1e-6, zero_centered: true, placement: sandwich}, mlp: {kind: geglu, bias: false}, "
     "tie_embeddings: true, embedding_scale: sqrt_hidden",
     0.0625},
    {"glm45",
     "attention: {heads: 4, head_dim: 128, bias: {qkv: true, output: false}, "
     "qk_norm: {kind: rms, scope: head, weight: shared, cast: before_weight, eps: 1e-5, placement: before_rope}, "
     "logit_scale: {kind: fixed}}, "
     "rope: {theta: 1e6, fraction: 0.5}, norm: {kind: rms, eps: 1e-5, placement: pre}, mlp: {kind: swiglu, bias: "
     "false}",
     0.08838834764831845},
    {"llama4",
     "attention: {heads: 4, bias: {qkv: false, output: false}, "
     "qk_norm: {kind: rms, scope: head, weight: none, layers: rope_only, placement: after_rope, eps: 1e-5}, "
     "logit_scale: {kind: fixed}}, "
     "rope: {theta: 5e5, fraction: 1}, norm: {kind: rms, eps: 1e-5, placement: pre}, mlp: {kind: swiglu, bias: false}",
     0.25},
};

DecoderConfig read(const std::string& keys) {
  return read_decoder_config(config::parse("{hidden: 64, layers: 2, ffn: 128, vocab: 100, " + keys + "}", "test"));
}

TEST(Presets, AreTheirRows) {
  for (const Row& row : kRows) {
    const DecoderConfig actual = read(fmt::format("preset: {}, attention: {{heads: 4{}}}", row.preset, row.given));
    DecoderConfig expected = read(row.block);
    expected.preset = actual.preset;
    EXPECT_EQ(config::print(config::to_node(actual)), config::print(config::to_node(expected))) << row.preset;
    EXPECT_NEAR(actual.initial_scale(0), row.initial_scale, 1e-12) << row.preset;
  }
}

TEST(Presets, EachHasARow) {
  std::set<std::string> rows = {"none"};
  for (const Row& row : kRows) rows.insert(row.preset);
  const std::vector<std::string> names = enum_names(Preset());
  EXPECT_EQ(rows, std::set<std::string>(names.begin(), names.end()));
}

}  // namespace
}  // namespace keel::models
