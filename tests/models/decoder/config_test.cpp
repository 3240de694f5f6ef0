// The `model:` section: documentation, presets, and what is refused.
#include <gmock/gmock.h>

#include <cmath>

#include "framework/comm/communicator.h"
#include "framework/parallel/tensor_parallel.h"
#include "models/decoder/decoder.h"
#include "models/decoder/parallelize.h"
#include "tests/support/documentation.h"

namespace keel::models {
namespace {

using ::testing::HasSubstr;

DecoderConfig read(const std::string& keys) {
  return read_decoder_config(config::parse("{hidden: 64, layers: 2, ffn: 128, vocab: 100, " + keys + "}", "test"));
}

std::string refusal(const std::string& keys) {
  try {
    read(keys);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "accepted";
}

TEST(DecoderConfig, DocumentationIsUpToDate) {
  keel::testing::expect_documented(KEEL_SOURCE_DIR "/configs/README.md", "model keys",
                                   config::documentation_table<DecoderConfig>("model"));
}

TEST(DecoderConfig, ResolvedConfigReadsBackTheSame) {
  for (const char* preset :
       {"none", "baseline", "llama3", "olmo2", "qwen3", "gemma3", "vit22b", "henry2020", "glm45", "llama4"}) {
    const std::string_view more = preset == std::string_view("henry2020") ? ", logit_scale: {length: 72}" : "";
    const DecoderConfig c = read(fmt::format("preset: {}, attention: {{heads: 4, head_dim: 16{}}}", preset, more));
    const std::string text = config::print(config::to_node(c));
    EXPECT_EQ(text, config::print(config::to_node(read_decoder_config(config::parse(text, "again"))))) << preset;
  }
}

TEST(DecoderConfig, PresetsFillInAndKeysWin) {
  EXPECT_EQ(read("preset: qwen3, attention: {heads: 4}").head_dim(), 128);
  EXPECT_EQ(read("preset: qwen3, attention: {heads: 4, head_dim: 16}").head_dim(), 16);
  EXPECT_EQ(read("preset: baseline, attention: {heads: 4}").qk_kind(0), ops::QkNormKind::none);
  const DecoderConfig gemma = read("preset: gemma3, attention: {heads: 4}");
  EXPECT_EQ(gemma.layer_kind(5), LayerKind::global);
  EXPECT_DOUBLE_EQ(gemma.initial_scale(0), 1.0 / 16);
  const DecoderConfig henry = read("preset: henry2020, attention: {heads: 4, logit_scale: {length: 90}}");
  EXPECT_DOUBLE_EQ(henry.initial_scale(0), std::log2(90.0 * 90 - 90));
}

TEST(DecoderConfig, TheScaleStartsAtTheBaselinesTemperature) {
  EXPECT_DOUBLE_EQ(read("attention: {heads: 4}").initial_scale(0), 0.25);
  EXPECT_DOUBLE_EQ(read("attention: {heads: 4, qk_norm: {kind: l2}}").initial_scale(0), 4);
  EXPECT_DOUBLE_EQ(read("attention: {heads: 4, kv_heads: 2, qk_norm: {kind: l2, scope: full}}").initial_scale(0),
                   std::sqrt(16.0 * 4 * 2));
  EXPECT_EQ(read("attention: {heads: 4}").scale_kind(0), nn::LogitScaleKind::per_head);
  EXPECT_EQ(read("attention: {heads: 4, qk_norm: {kind: none}}").scale_kind(0), nn::LogitScaleKind::fixed);
}

TEST(DecoderConfig, HeadSizeIsItsOwnSetting) {  // CASES R13
  const DecoderConfig c =
      read_decoder_config(config::parse("{hidden: 1024, layers: 1, ffn: 64, vocab: 100, attention: {heads: 16, "
                                        "head_dim: 128, qk_norm: {weight: shared}}}",
                                        "test"));
  Decoder decoder(c);
  EXPECT_EQ(decoder.parameters().at("blocks.0.attention.q.weight").spec.shape, (Shape{2048, 1024}));
  EXPECT_EQ(decoder.parameters().at("blocks.0.attention.q_norm.weight").spec.shape, (Shape{128}));
  EXPECT_NEAR(c.initial_scale(0), 0.088388, 1e-6);
}

TEST(DecoderConfig, RefusesWhatDoesNotFit) {  // CASES R13, R17, R58
  EXPECT_THAT(refusal("attention: {heads: 12}"), HasSubstr("hidden 64 is not a multiple of 12 heads"));
  EXPECT_THAT(refusal("attention: {heads: 4, kv_heads: 3}"), HasSubstr("3 KV heads do not divide 4 heads"));
  EXPECT_THAT(refusal("attention: {heads: 4, kv_heads: 0}"), HasSubstr("kv_heads"));
  EXPECT_THAT(refusal("attention: {heads: 4, head_dim: 15}"), HasSubstr("must be even"));
  EXPECT_THAT(refusal("attention: {heads: 4, window: 8}"), HasSubstr("no local layer"));
  EXPECT_THAT(refusal("layer_pattern: [local], attention: {heads: 4}"), HasSubstr("no different"));
  EXPECT_THAT(refusal("attention: {heads: 4, window: 0}, layer_pattern: [local]"), HasSubstr("window"));
  EXPECT_THAT(refusal("attention: {heads: 4, qk_norm: {scope: full, weight: shared}}"), HasSubstr("scope full"));
  EXPECT_THAT(refusal("attention: {heads: 4, qk_norm: {weight: none, zero_centered: true}}"), HasSubstr("no gains"));
  EXPECT_THAT(refusal("attention: {heads: 4, qk_norm: {clip_weight: 2}}"), HasSubstr("logit_scale.clip"));
  EXPECT_THAT(refusal("attention: {heads: 4, logit_scale: {kind: fixed, clip: 2}}"), HasSubstr("no learned scale"));
  EXPECT_THAT(refusal("attention: {heads: 4, logit_scale: {init: log2_length}}"), HasSubstr("length"));
  EXPECT_THAT(refusal("attention: {heads: 4, logit_scale: {length: 7}}"), HasSubstr("log2_length"));
  EXPECT_THAT(refusal("attention: {heads: 4, qk_norm: {kind: l2, eps: 0}}"), HasSubstr("floor"));
  EXPECT_THAT(refusal("attention: {heads: 4, qk_norm: {knd: l2}}"), HasSubstr("kind"));
}

// A start from which nothing moves, a norm that is nowhere, a bound that the first update would jump to.
TEST(DecoderConfig, RefusesQkNormThatDoesNothing) {
  const std::string heads = "attention: {heads: 4, ";
  EXPECT_THAT(refusal(heads + "qk_norm: {weight_init: 0}}"), HasSubstr("weight_init"));
  EXPECT_THAT(refusal(heads + "qk_norm: {zero_centered: true, weight_init: 0}}"), HasSubstr("the gain itself"));
  EXPECT_THAT(refusal(heads + "qk_norm: {layers: rope_only}}, positions: {global: none, local: none}"),
              HasSubstr("none has RoPE"));
  EXPECT_THAT(refusal(heads + "qk_norm: {weight_init: -3, clip_weight: 2}, logit_scale: {kind: fixed}}"),
              HasSubstr("clip_weight"));
  // l2 starts at sqrt(16) = 4 in the layers with RoPE, and 1/4 in those without a norm.
  const std::string mixed = ", positions: {global: none, local: rope}, layer_pattern: [global, local]";
  EXPECT_THAT(
      refusal(heads + "qk_norm: {kind: l2, layers: rope_only}, logit_scale: {kind: per_head, clip: 3}}" + mixed),
      HasSubstr("start of 4 in layer 1"));
  EXPECT_THAT(refusal(heads + "window: null}, positions: {local: none}"), HasSubstr("no local layer"));
}

// Windows cost what they see: 12 H d T of a whole layer, 12 H d 2W of one with a window W below T / 2.
TEST(DecoderConfig, WarnsOfGainsThatTurn) {
  const auto said = [](const std::string& qk_norm) {
    ::testing::internal::CaptureStderr();
    read(fmt::format("attention: {{heads: 4, qk_norm: {{{}}}}}", qk_norm));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said("placement: after_rope"),
            "keel: warning: attention.qk_norm: gains that differ within a rotated pair lose relative positions when "
            "placement is after_rope\n");
  EXPECT_EQ(said("placement: after_rope, weight: none"), "");
  EXPECT_EQ(said("placement: before_rope"), "");
}

TEST(DecoderCost, CountsWindowsAndWhatIsComputedAgain) {
  const auto cost = [](const std::string& keys, int64_t length) { return Decoder(read(keys)).cost(length); };
  const std::string two = "attention: {heads: 4, window: 8}, layer_pattern: [local, global]";
  EXPECT_EQ(cost(two, 64).attention_operations, 12.0 * 64 * (16 + 64));
  EXPECT_EQ(cost(two, 10).attention_operations, 12.0 * 64 * (10 + 10));
  const ModelCost kept = cost("attention: {heads: 4}", 64);
  EXPECT_EQ(kept.recomputed_operations, 0);
  const ModelCost again = cost("attention: {heads: 4}, recompute: block", 64);
  // All but the head: a third of forward and backward.
  const double head = 6.0 * double(read("attention: {heads: 4}").padded_vocab()) * 64;
  EXPECT_NEAR(again.recomputed_operations, (kept.operations_causal() - head) / 3, 1);
  const ModelCost part = cost("attention: {heads: 4}, recompute: attention", 64);
  EXPECT_EQ(part.recomputed_operations, 2.0 * 2 * 3 * 64 * 64 + kept.attention_operations / 6);
}

// The conventions of MFU by hand. N: of each of two layers q and output 64 x 64, k and v 32 x 64, three of the
// feed-forward 64 x 128; and the head, 128 x 64 with its padding. No table that is looked up in counts.
TEST(DecoderCost, CountsWhatATokenCosts) {
  constexpr int64_t kProducts = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128) + 128 * 64;
  constexpr double kAttention = 12.0 * 2 * (4 * 16) * 50;  // 12 L H d T
  constexpr int64_t kGains = (2 * 2 + 1) * 64 + 2 * (4 * 16 + 2 * 16 + 4);
  const std::string heads = "attention: {heads: 4, kv_heads: 2}";
  struct Case {
    std::string keys;
    int64_t rows;  // of the tables of width 64 that hold parameters: ids without padding, positions
  };
  for (const auto& [keys, rows] :
       {Case{heads, 2 * 100},
        {heads + ", tie_embeddings: true", 100},
        {heads + ", positions: {global: none, local: none, learned: true, max_positions: 70}", 2 * 100 + 70}}) {
    const ModelCost cost = Decoder(read(keys)).cost(50);
    EXPECT_EQ(cost.product_parameters, kProducts) << keys;
    EXPECT_EQ(cost.operations_full(), 6.0 * kProducts + kAttention) << keys;
    EXPECT_EQ(cost.operations_causal(), 6.0 * kProducts + kAttention / 2) << keys;
    EXPECT_EQ(cost.parameters, kProducts - 128 * 64 + kGains + rows * 64) << keys;
  }
}

TEST(DecoderConfig, RefusesFrequencyScalingsThatMeanNothing) {
  const auto with = [](const std::string& scaling, const std::string& more = "") {
    return refusal("attention: {heads: 4}, rope: {scaling: {" + scaling + "}}" + more);
  };
  EXPECT_THAT(with("factor: 8"), HasSubstr("rope.scaling.kind"));
  EXPECT_THAT(with("kind: linear, factor: 8, attention_factor: 1.2"), HasSubstr("only used with kind: yarn"));
  EXPECT_THAT(with("kind: llama3, low_frequency_factor: 4"), HasSubstr("must be below high_frequency_factor 4"));
  EXPECT_THAT(with("kind: yarn, factor: 4, beta_fast: 1, beta_slow: 32"), HasSubstr("must be at most beta_fast 1"));
  EXPECT_EQ(with("kind: none", ", preset: llama3"), "accepted") << "the preset's factor";
  EXPECT_EQ(with("kind: yarn, factor: 4, attention_factor: 1.2"), "accepted");
}

std::string split_refusal(const std::string& keys, int ranks) {
  Decoder decoder(read(keys));
  try {
    parallelize(decoder, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Parallelize, RefusesWhatDoesNotDivide) {  // CASES R39, R58
  EXPECT_THAT(split_refusal("attention: {heads: 4}", 3), HasSubstr("3 ranks do not divide 4 heads"));
  EXPECT_THAT(split_refusal("attention: {heads: 12, kv_heads: 6, head_dim: 8}", 4), HasSubstr("6 KV heads"));
  EXPECT_THAT(split_refusal("attention: {heads: 6, head_dim: 8}", 3), HasSubstr("3 ranks do not divide 128 features"));
  EXPECT_THAT(split_refusal("attention: {heads: 8}, pad_vocab_to: 1", 8), HasSubstr("8 ranks do not divide 100 ids"));
  EXPECT_EQ(split_refusal("attention: {heads: 8, kv_heads: 2, head_dim: 8}", 4), "accepted");
}

// No T x T matrix: twice the length takes twice the memory, whatever it is.
TEST(Decoder, MemoryGrowsWithTheLength) {
  const auto alone = comm::make_self_communicator();
  parallel::TensorParallel group(*alone);
  for (const char* preset : {"qwen3", "gemma3"}) {
    const auto bytes = [&](int64_t length) {
      Decoder decoder(read(fmt::format("preset: {}, attention: {{heads: 4, head_dim: 16}}", preset)));
      decoder.allocate({.parameters = {.device = {DeviceKind::meta}}, .group = &group, .batch = {1, length}});
      decoder.rehearse();
      return double(decoder.activation_bytes());
    };
    EXPECT_NEAR(bytes(32768) / bytes(16384), 2, 0.01) << preset;
  }
}

// With rows of 4 KiB, whose weights may have no packed form (ops/matmul/matmul.h).
TEST(Decoder, PackedWeightsTakeWhatIsPlanned) {
  const auto alone = comm::make_self_communicator();
  parallel::TensorParallel group(*alone);
  for (DType activation : {DType::f32, DType::bf16}) {
    const auto bytes = [&](DeviceKind kind) {
      Decoder decoder(read_decoder_config(config::parse(
          "{preset: qwen3, hidden: 64, layers: 1, ffn: 2048, vocab: 4096, attention: {heads: 4}}", "test")));
      decoder.allocate({.parameters = {.device = {kind}, .activation = activation}, .group = &group, .batch = {1, 16}});
      decoder.refresh();
      return decoder.packed_bytes();
    };
    EXPECT_EQ(bytes(DeviceKind::meta), bytes(DeviceKind::cpu)) << name_of(activation);
  }
}

TEST(Parallelize, QkNormWeightsOfALargeModel) {  // QKNORM.md section 4, without memory
  const DecoderConfig c =
      read_decoder_config(config::parse("{hidden: 8192, layers: 80, ffn: 28672, vocab: 128256, attention: {heads: 64, "
                                        "kv_heads: 8, logit_scale: {kind: fixed}}}",
                                        "test"));
  EXPECT_EQ(Decoder(c).cost(8192).qk_norm_parameters, 737280);
}

}  // namespace
}  // namespace keel::models
