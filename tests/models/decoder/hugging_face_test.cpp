// config.json: what is silent in it, and what a stranger's file may hold.
#include "models/decoder/hugging_face.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace keel::models {
namespace {

using ::testing::HasSubstr;

HuggingFaceConfig read(const std::string& json) {
  return read_hugging_face_config(json, "config.json");
}

std::string refusal(const std::string& json) {
  try {
    read(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(HuggingFaceConfig, SizesAreInRange) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"})
    for (const char* value : {"0", "-1", "1000000000000000"})
      EXPECT_THAT(refusal(fmt::format(R"({{"model_type": "qwen3", "{}": {}}})", key, value)),
                  HasSubstr(fmt::format("config.json: {}: must be from 1 to ", key)))
          << value;
  EXPECT_THAT(refusal(R"({"model_type": "gemma3_text", "sliding_window": 0})"), HasSubstr("sliding_window: must be"));
  EXPECT_THAT(refusal(R"({"model_type": "llama", "num_hidden_layers": 18446744073709551615})"),
              HasSubstr("num_hidden_layers: must be a whole number"));
}

TEST(HuggingFaceConfig, DeepNestingIsRefused) {
  std::string json = R"({"model_type": "qwen3", "rope_scaling": )";
  for (const char* bracket : {"[", "]"})
    for (int i = 0; i < 1'000'000; ++i) json += bracket;
  EXPECT_THAT(refusal(json + "}"), HasSubstr("config.json nests more than 64 deep"));
  EXPECT_THAT(refusal(R"({"model_type": "qwen3", "vocab_size": 7, "vocab_size": 8})"), HasSubstr("twice"));
}

// As it was published: what Gemma3TextConfig has by itself is not in it, and the type stands outside.
TEST(HuggingFaceConfig, SilentKeysAreTheFamilysOwn) {
  const HuggingFaceConfig gemma = read(R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
      "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  EXPECT_EQ(gemma.element_type, "bfloat16");
  const DecoderConfig& c = gemma.decoder;
  EXPECT_EQ(c.vocab.value(), 262208);
  EXPECT_EQ(c.attention.heads, 8);
  EXPECT_EQ(c.kv_heads(), 4);
  EXPECT_EQ(c.head_dim(), 256);
  EXPECT_EQ(c.attention.window, 1024);
  EXPECT_EQ(c.positions.max_positions, 131072);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.local_theta.value(), 1e4);
  EXPECT_EQ(c.initial_scale(0), 1.0 / 16);
  EXPECT_TRUE(c.tie_embeddings);

  const HuggingFaceConfig all = read(R"({"model_type": "gemma3", "dtype": "float16", "text_config": {
      "model_type": "gemma3_text", "dtype": "float32"}})");
  EXPECT_EQ(all.element_type, "float32") << "the text model's own type wins";
  EXPECT_EQ(all.decoder.hidden, 2304);
  EXPECT_EQ(all.decoder.layers, 26);
  EXPECT_EQ(all.decoder.attention.window, 4096);
  EXPECT_EQ(read(R"({"model_type": "llama", "num_attention_heads": 64})").decoder.kv_heads(), 64);
}

// null is none, where a missing key is the family's default; what has no such meaning must not be null.
TEST(HuggingFaceConfig, NullIsNotAMissingKey) {
  EXPECT_EQ(
      read(R"({"model_type": "qwen3", "num_attention_heads": 64, "num_key_value_heads": null})").decoder.kv_heads(),
      64);
  EXPECT_EQ(read(R"({"model_type": "qwen3", "num_attention_heads": 64})").decoder.kv_heads(), 32);
  const std::string windows = R"({"model_type": "qwen3", "num_hidden_layers": 3, "use_sliding_window": true,
                                  "max_window_layers": 1)";
  EXPECT_EQ(read(windows + "}").decoder.attention.window, 4096);
  const DecoderConfig none = read(windows + R"(, "sliding_window": null})").decoder;
  EXPECT_FALSE(none.attention.window);
  EXPECT_EQ(none.layer_pattern, std::vector{LayerKind::global});
  EXPECT_THAT(refusal(R"({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["sliding_attention"],
                          "sliding_window": null})"),
              HasSubstr("config.json: sliding_window: is null"));
  EXPECT_THAT(refusal(R"({"model_type": "gemma3_text", "sliding_window": null})"),
              HasSubstr("sliding_window: is null"));
  EXPECT_THAT(refusal(R"({"model_type": "llama", "rms_norm_eps": null})"), HasSubstr("rms_norm_eps: is null"));
  EXPECT_FALSE(read(R"({"model_type": "gemma3_text", "tie_word_embeddings": null})").decoder.tie_embeddings);
}

// Keys that transformers has and does not follow in these families.
TEST(HuggingFaceConfig, RefusesWhatTransformersLeavesOut) {
  EXPECT_THAT(refusal(R"({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})"),
              HasSubstr("attn_logit_softcapping: transformers has the key and never caps"));
  read(R"({"model_type": "gemma3_text", "attn_logit_softcapping": null, "final_logit_softcapping": 30.0})");
  for (const char* at : {R"("partial_rotary_factor": 0.5)", R"("rope_parameters": {"partial_rotary_factor": 0.5})",
                         R"("rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}})",
                         R"("rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}})",
                         R"("rope_scaling": {"partial_rotary_factor": 0.5})"})
    EXPECT_THAT(refusal(fmt::format(R"({{"model_type": "gemma3_text", {}}})", at)),
                HasSubstr("partial_rotary_factor: transformers leaves it out of account"));
  EXPECT_EQ(read(R"({"model_type": "llama", "partial_rotary_factor": 1.0})").decoder.rope.fraction, 1);
}

TEST(HuggingFaceConfig, SpecialIdsComeAlong) {
  const config::SpecialIds one = read(R"({"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2})").special_ids;
  EXPECT_EQ(one, (config::SpecialIds{1, {2}, {}}));
  const config::SpecialIds outside = read(R"({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": {
      "model_type": "gemma3_text", "pad_token_id": 0, "eos_token_id": null}})")
                                         .special_ids;
  EXPECT_EQ(outside, (config::SpecialIds{{}, {1, 106}, 0}));
  for (const char* bad : {"-1", "1.5", "\"</s>\"", "[1, null]", "4294967296"})
    EXPECT_THAT(refusal(fmt::format(R"({{"model_type": "llama", "eos_token_id": {}}})", bad)),
                HasSubstr("eos_token_id: must be ids from 0 to"));
}

// ---- the way out ----

HuggingFaceConfig model_of(const std::string& yaml) {
  return {.decoder = read_decoder_config(config::parse("{vocab: 64, layers: 2, ffn: 64, " + yaml + "}", "model"))};
}

std::string export_refusal(const std::string& yaml) {
  try {
    hugging_face_config(model_of(yaml), 128);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    return error.what();
  }
  return "accepted";
}

// transformers 4 divides this number by the original length, and takes that for YaRN's factor.
TEST(HuggingFaceExport, SaysHowLongATextMayBe) {
  const auto longest = [](const std::string& yaml, int64_t sequence_length) {
    const std::string json =
        hugging_face_config(model_of("hidden: 32, attention: {heads: 4}, " + yaml), sequence_length);
    return nlohmann::json::parse(json)["max_position_embeddings"].get<int64_t>();
  };
  EXPECT_EQ(longest("preset: qwen3", 128), 4096);
  EXPECT_EQ(longest("preset: qwen3", 8192), 8192);
  EXPECT_EQ(longest("preset: qwen3, positions: {max_positions: 40960}", 128), 40960);
  EXPECT_EQ(longest("preset: qwen3, rope: {scaling: {kind: yarn, factor: 2.5, original_positions: 1000}}", 4000), 2500);
}

TEST(HuggingFaceExport, RefusesWhatTransformersWould) {
  const std::string sizes = "hidden: 32, attention: {heads: 4, head_dim: 8";
  EXPECT_THAT(export_refusal("preset: gemma3, " + sizes + ", logit_softcap: 50}"),
              HasSubstr("nearest is gemma3_text, but there model.attention.logit_softcap is 50"));
  EXPECT_THAT(export_refusal("preset: gemma3, " + sizes + ", logit_scale: {init: 0.3}}"),
              HasSubstr("model.attention.logit_scale.init must be one over the root of a whole number, is 0.3"));
  EXPECT_EQ(export_refusal("preset: gemma3, " + sizes + ", logit_scale: {init: 0.25}}"), "accepted");
  const std::string odd = "hidden: 30, attention: {heads: 4, head_dim: 8}";
  for (const char* preset : {"llama3", "gemma3"})
    EXPECT_THAT(export_refusal(fmt::format("preset: {}, {}", preset, odd)),
                HasSubstr("model.hidden must be a multiple of model.attention.heads, is 30 with 4"));
  EXPECT_EQ(export_refusal("preset: qwen3, " + odd), "accepted");
  EXPECT_THAT(export_refusal("preset: qwen3, rope: {fraction: 0.5}, " + sizes + "}"),
              HasSubstr("model.rope.fraction is 0.5"));
}

}  // namespace
}  // namespace keel::models
