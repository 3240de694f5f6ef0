// Parameters by their names in transformers.
#include "models/decoder/hugging_face.h"

namespace keel::models {
namespace {

struct Name {
  std::string_view ours, theirs;
};

// Within a layer.
constexpr Name kProjections[] = {
    {"attention.q", "self_attn.q_proj"},
    {"attention.k", "self_attn.k_proj"},
    {"attention.v", "self_attn.v_proj"},
    {"attention.output", "self_attn.o_proj"},
    {"attention.q_norm", "self_attn.q_norm"},
    {"attention.k_norm", "self_attn.k_norm"},
    {"mlp.gate", "mlp.gate_proj"},
    {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
};
// Their names of norms say where a norm stands, and mean different places by placement.
constexpr Name kPreNorms[] = {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}};
constexpr Name kPostNorms[] = {{"attention_post_norm", "post_attention_layernorm"},
                               {"mlp_post_norm", "post_feedforward_layernorm"}};
constexpr Name kSandwichNorms[] = {{"attention_norm", "input_layernorm"},
                                   {"attention_post_norm", "post_attention_layernorm"},
                                   {"mlp_norm", "pre_feedforward_layernorm"},
                                   {"mlp_post_norm", "post_feedforward_layernorm"}};
constexpr Name kOutside[] = {{"embedding", "model.embed_tokens"}, {"final_norm", "model.norm"}, {"head", "lm_head"}};

std::span<const Name> norms_of(nn::NormPlacement placement) {
  if (placement == nn::NormPlacement::pre) return kPreNorms;
  if (placement == nn::NormPlacement::post) return kPostNorms;
  return kSandwichNorms;
}

std::string_view counterpart(std::span<const Name> names, std::string_view ours) {
  for (const Name& name : names)
    if (name.ours == ours) return name.theirs;
  return {};
}

// "blocks.3.attention.q.weight" -> "model.layers.3.self_attn.q_proj.weight"; "" where there is none.
std::string their_name(const std::string& ours, nn::NormPlacement placement) {
  const size_t dot = ours.rfind('.');
  const std::string_view module = std::string_view(ours).substr(0, dot), kind = std::string_view(ours).substr(dot);
  if (!module.starts_with("blocks.")) {
    const std::string_view theirs = counterpart(kOutside, module);
    return theirs.empty() ? "" : fmt::format("{}{}", theirs, kind);
  }
  const size_t number = 7, end = module.find('.', number);
  const std::string_view layer = module.substr(number, end - number), part = module.substr(end + 1);
  std::string_view theirs = counterpart(kProjections, part);
  if (theirs.empty()) theirs = counterpart(norms_of(placement), part);
  return theirs.empty() ? "" : fmt::format("model.layers.{}.{}{}", layer, theirs, kind);
}

// Rows before this part, and rows of the whole, where a file joins q, k and v or gate and up.
void add_fused(TensorMapping& mapping, const DecoderConfig& c) {
  const std::string& name = mapping.theirs;
  const int64_t d = c.head_dim(), q = c.attention.heads * d, kv = c.kv_heads() * d;
  const std::tuple<const char*, const char*, int64_t, int64_t> parts[] = {
      {".q_proj.", ".qkv_proj.", 0, q + 2 * kv},
      {".k_proj.", ".qkv_proj.", q, q + 2 * kv},
      {".v_proj.", ".qkv_proj.", q + kv, q + 2 * kv},
      {".gate_proj.", ".gate_up_proj.", 0, 2 * c.ffn},
      {".up_proj.", ".gate_up_proj.", c.ffn, 2 * c.ffn}};
  for (const auto& [part, whole, first, rows] : parts) {
    const size_t at = name.find(part);
    if (at == std::string::npos) continue;
    mapping.fused = name.substr(0, at) + whole + name.substr(at + std::string_view(part).size());
    mapping.first_row = first;
    mapping.fused_rows = rows;
  }
}

}  // namespace

std::vector<TensorMapping> tensor_mappings(Decoder& decoder) {
  const DecoderConfig& c = decoder.config();
  std::vector<TensorMapping> mappings;
  for (const nn::Parameter& parameter : decoder.parameters().all()) {
    const std::string& ours = parameter.spec.name;
    TensorMapping mapping{.parameter = &parameter, .theirs = their_name(ours, c.norm.placement)};
    if (mapping.theirs.empty()) throw input_error("{}: transformers has no such tensor in this family", ours);
    const Shape& shape = parameter.spec.shape;
    mapping.shape.assign(shape.sizes().begin(), shape.sizes().end());
    if (shape.dims() == 2 && shape[0] == c.padded_vocab() && (ours == "embedding.weight" || ours == "head.weight"))
      mapping.shape[0] = c.vocab.value();
    const bool gain = ours.ends_with("q_norm.weight") || ours.ends_with("k_norm.weight");
    if (gain) mapping.shape = {shape.elements()};
    mapping.rotary =
        gain || ours.find(".attention.q.") != std::string::npos || ours.find(".attention.k.") != std::string::npos;
    add_fused(mapping, c);
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

int64_t interleaved_row(int64_t row, int64_t head_dim, int64_t rotated) {
  const int64_t feature = row % head_dim, half = rotated / 2;
  if (feature >= rotated) return row;
  return row - feature + (feature < half ? 2 * feature : 2 * (feature - half) + 1);
}

}  // namespace keel::models
