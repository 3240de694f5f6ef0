// model -> config.json. Whether a family has exactly this block is not listed here but tried: what is written must read
// back as the same model.
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/decoder/essence.h"
#include "models/decoder/hugging_face.h"

namespace keel::models {
namespace {

using Json = nlohmann::ordered_json;

struct Family {
  Preset preset;
  const char *type, *architecture;
};
constexpr Family kFamilies[] = {{Preset::llama3, "llama", "LlamaForCausalLM"},
                                {Preset::olmo2, "olmo2", "Olmo2ForCausalLM"},
                                {Preset::qwen3, "qwen3", "Qwen3ForCausalLM"},
                                {Preset::gemma3, "gemma3_text", "Gemma3ForCausalLM"}};

Json scaling_of(const RopeScalingConfig& s) {
  switch (s.kind) {
    case ops::RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", s.factor}};
    case ops::RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_frequency_factor},
              {"high_freq_factor", s.high_frequency_factor},
              {"original_max_position_embeddings", int64_t(s.original_positions)}};
    case ops::RopeScaling::Kind::yarn: {
      Json json = {{"rope_type", "yarn"},
                   {"factor", s.factor},
                   {"original_max_position_embeddings", int64_t(s.original_positions)},
                   {"beta_fast", s.beta_fast},
                   {"beta_slow", s.beta_slow}};
      if (!s.attention_factor.is_auto()) json["attention_factor"] = s.attention_factor.value();
      return json;
    }
    default:
      return nullptr;
  }
}

Json layer_types(const DecoderConfig& c) {
  Json types = Json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer)
    types.push_back(c.layer_kind(layer) == LayerKind::local ? "sliding_attention" : "full_attention");
  return types;
}

void add_windows(Json& json, const DecoderConfig& c, const Family& family) {
  const bool gemma = family.preset == Preset::gemma3;
  if (!gemma && family.preset != Preset::qwen3) return;
  json["layer_types"] = layer_types(c);
  json["sliding_window"] = c.attention.window ? Json(*c.attention.window) : gemma ? Json(4096) : Json();
  if (!gemma) json["use_sliding_window"] = c.attention.window.has_value();
}

// One over the square of the logit scale, as the whole number that it stands for where there is one.
Json query_scalar(const DecoderConfig& c) {
  const double scale = c.initial_scale(0), scalar = 1 / (scale * scale);
  const int64_t whole = std::llround(scalar);
  return whole > 0 && std::abs(1 / std::sqrt(double(whole)) - scale) < 1e-12 * scale ? Json(whole) : Json(scalar);
}

// The longest text that the model is made for. transformers 4 takes YaRN's factor from it.
int64_t longest_text(const DecoderConfig& c, int64_t sequence_length) {
  const RopeScalingConfig& s = c.rope.scaling;
  const bool yarn = s.kind == ops::RopeScaling::Kind::yarn;
  return yarn ? std::llround(s.factor * s.original_positions) : std::max(sequence_length, c.positions.max_positions);
}

Json id_or_null(std::optional<int64_t> id) {
  return id ? Json(*id) : Json();
}

void add_special_ids(Json& json, const config::SpecialIds& ids) {
  json["bos_token_id"] = id_or_null(ids.bos);
  json["eos_token_id"] = ids.eos.size() > 1 ? Json(ids.eos) : ids.eos.empty() ? Json() : Json(ids.eos[0]);
  json["pad_token_id"] = id_or_null(ids.pad);
}

Json config_of(const HuggingFaceConfig& model, const Family& family, int64_t sequence_length) {
  const DecoderConfig& c = model.decoder;
  const bool gemma = family.preset == Preset::gemma3;
  Json json = {{"architectures", {family.architecture}},
               {"model_type", family.type},
               {"vocab_size", c.vocab.value()},
               {"hidden_size", c.hidden},
               {"intermediate_size", c.ffn},
               {"num_hidden_layers", c.layers},
               {"num_attention_heads", c.attention.heads},
               {"num_key_value_heads", c.kv_heads()},
               {"head_dim", c.head_dim()},
               {"max_position_embeddings", longest_text(c, sequence_length)},
               {"rms_norm_eps", c.norm.eps},
               {"rope_theta", c.rope.theta},
               {"rope_scaling", scaling_of(c.rope.scaling)},
               {"attention_bias", c.attention.bias.qkv},
               {"attention_dropout", 0.0},
               {"tie_word_embeddings", c.tie_embeddings},
               {"torch_dtype", model.element_type}};
  const bool silu = c.mlp.kind == ops::ActivationKind::swiglu;
  json[gemma ? "hidden_activation" : "hidden_act"] = silu ? "silu" : "gelu_pytorch_tanh";
  if (family.preset == Preset::llama3) json["mlp_bias"] = c.mlp.bias;
  add_windows(json, c, family);
  add_special_ids(json, model.special_ids);
  if (!gemma) return json;
  json["rope_local_base_freq"] = c.rope.local_theta.value_or(1e4);
  json["query_pre_attn_scalar"] = query_scalar(c);
  json["final_logit_softcapping"] = c.final_softcap ? Json(*c.final_softcap) : Json();
  json["attn_logit_softcapping"] = nullptr;  // which they never apply
  return json;
}

// What transformers checks of a config.json that it reads.
std::vector<std::string> refusals(const DecoderConfig& c, const Family& family) {
  std::vector<std::string> lines;
  const bool gemma = family.preset == Preset::gemma3;
  if (gemma && !query_scalar(c).is_number_integer())
    lines.push_back(fmt::format("model.attention.logit_scale.init must be one over the root of a whole number, is {}",
                                c.initial_scale(0)));
  if ((gemma || family.preset == Preset::llama3) && c.hidden % c.attention.heads != 0)
    lines.push_back(fmt::format("model.hidden must be a multiple of model.attention.heads, is {} with {}", c.hidden,
                                c.attention.heads));
  return lines;
}

// What of `ours` does not come back from that config.json, or transformers would refuse; nothing where the family
// refuses it altogether.
std::optional<std::vector<std::string>> differences(const DecoderConfig& ours, const Family& family,
                                                    const std::string& json) {
  DecoderConfig theirs;
  try {
    theirs = read_hugging_face_config(json, "config.json").decoder;
  } catch (const Error&) {
    return std::nullopt;
  }
  std::vector<std::string> lines = refusals(ours, family);
  for (const config::Difference& d : differences_of_functions(theirs, ours))
    lines.push_back(fmt::format("model.{} is {}, not {}", d.key, d.now, d.stored));
  return lines;
}

}  // namespace

std::string hugging_face_config(const HuggingFaceConfig& model, int64_t sequence_length) {
  std::vector<std::string> best;
  const char* nearest = nullptr;
  for (const Family& family : kFamilies) {
    const std::string text = config_of(model, family, sequence_length).dump(2) + "\n";
    const auto lines = differences(model.decoder, family, text);
    if (lines && lines->empty()) return text;
    if (lines && (!nearest || lines->size() < best.size())) {
      nearest = family.type;
      best = *lines;
    }
  }
  if (!nearest) throw input_error("transformers has no family with a block like this one");
  throw input_error("transformers has no family with this block; nearest is {}, but there {}", nearest,
                    fmt::join(best, "; "));
}

}  // namespace keel::models
