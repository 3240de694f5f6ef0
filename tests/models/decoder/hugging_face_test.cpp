// config.json: what is silent in it, and what a stranger's file may hold.
#include "models/decoder/hugging_face.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace keel::models
