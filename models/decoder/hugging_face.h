// The families as Hugging Face transformers stores them: config.json, and the names and shapes of tensors, both ways.
// No file is opened here: launch/convert join this to checkpoints/safetensors.
//
// Known are the model types llama, olmo2, qwen3, gemma3_text and gemma3 (its text model), with the keys of transformers
// 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype). Written are those of 4, which 5 reads too.
#pragma once

#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "framework/config/run_config.h"
#include "models/decoder/decoder.h"

namespace keel::models {

struct HuggingFaceConfig {
  DecoderConfig decoder;                 // positions.max_positions is their max_position_embeddings
  std::string element_type = "float32";  // or "bfloat16", "float16"
  config::SpecialIds special_ids;
  std::vector<std::string> unread;  // keys that nothing here knows
};

// `where` names the file in errors. Throws where a key asks for what a decoder does not do.
HuggingFaceConfig read_hugging_face_config(std::string_view json, const std::string& where);

// config.json of such a model, trained at sequences of `sequence_length`. Throws where no family of theirs has this
// block, naming the keys in the way.
std::string hugging_face_config(const HuggingFaceConfig& model, int64_t sequence_length);

// One parameter, and the tensor that holds it there.
struct TensorMapping {
  const nn::Parameter* parameter = nullptr;
  std::string theirs;
  std::vector<int64_t> shape;  // theirs: without vocabulary padding, the gains of scope full as one row
  int64_t elements() const { return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>()); }
  // Where it may lie joined to its neighbours instead (qkv_proj, gate_up_proj): rows from first_row on of a tensor with
  // fused_rows; "" where it may not.
  std::string fused;
  int64_t first_row = 0, fused_rows = 0;
  // Features of heads that the rotation turns: rows of q and k (1: and their gains, whose rows are single numbers).
  bool rotary = false;
};

// Every parameter of a decoder in the order of its declaration. Throws where one has no counterpart.
std::vector<TensorMapping> tensor_mappings(Decoder& decoder);

// The row of a tensor with neighbouring pairs (2i, 2i + 1) that is row `row` of one with halves (i, i + rotated/2),
// both made of heads of `head_dim` rows.
int64_t interleaved_row(int64_t row, int64_t head_dim, int64_t rotated);

}  // namespace keel::models
