// config.json -> model.
#include <algorithm>
#include <cmath>

#include "framework/base/text.h"
#include "models/decoder/hugging_face.h"
#include "models/decoder/json_keys.h"

namespace keel::models {
namespace {

// What a family's config class takes where config.json is silent: a text_config beside a vision tower says only what
// differs from it. As many KV heads as heads where the class has no number of them, or config.json has null; head sizes
// are the presets'.
struct Family {
  const char* type;
  Preset preset;
  int64_t vocabulary, hidden, ffn, layers, heads;
  std::optional<int64_t> kv_heads;
  int64_t max_positions;
  double eps, theta;
};
constexpr Family kFamilies[] = {{"llama", Preset::llama3, 32000, 4096, 11008, 32, 32, {}, 2048, 1e-6, 1e4},
                                {"olmo2", Preset::olmo2, 50304, 4096, 11008, 32, 32, {}, 2048, 1e-5, 1e4},
                                {"qwen3", Preset::qwen3, 151936, 4096, 22016, 32, 32, 32, 32768, 1e-6, 1e4},
                                {"gemma3_text", Preset::gemma3, 262208, 2304, 9216, 26, 8, 4, 131072, 1e-6, 1e6}};
constexpr int64_t kWindow = 4096;  // of all that have one

// Far above every model there is, and low enough that products of sizes are numbers.
constexpr int64_t kMostLayers = 10'000, kWidest = 1 << 24, kMostIds = INT32_MAX, kMostPositions = INT32_MAX;

const Family& family_of(JsonKeys& keys) {
  const std::string type = keys.text("model_type");
  std::vector<std::string> known;
  for (const Family& family : kFamilies) {
    if (type == family.type) return family;
    known.push_back(family.type);
  }
  throw keys.error("model_type", "'{}' is not known{}; known are {} and gemma3", type, did_you_mean(type, known, ", "),
                   fmt::join(known, ", "));
}

void read_sizes(JsonKeys& keys, DecoderConfig& c, const Family& family) {
  c.hidden = keys.size("hidden_size", kWidest, family.hidden);
  c.layers = keys.size("num_hidden_layers", kMostLayers, family.layers);
  c.ffn = keys.size("intermediate_size", kWidest, family.ffn);
  c.vocab = keys.size("vocab_size", kMostIds, family.vocabulary);
  c.attention.heads = keys.size("num_attention_heads", kWidest, family.heads);
  const int64_t kv_heads = family.kv_heads.value_or(c.attention.heads);
  c.attention.kv_heads =
      keys.is_null("num_key_value_heads") ? c.attention.heads : keys.size("num_key_value_heads", kWidest, kv_heads);
  if (keys.has("head_dim"))
    c.attention.head_dim = keys.size("head_dim", kWidest);
  else if (c.attention.head_dim.is_auto() && c.hidden % c.attention.heads == 0)
    c.attention.head_dim = c.hidden / c.attention.heads;
  c.positions.max_positions = keys.size("max_position_embeddings", kMostPositions, family.max_positions);
  c.norm.eps = c.attention.qk_norm.eps = keys.real("rms_norm_eps", family.eps);
  const bool bias = keys.flag("attention_bias", false);
  c.attention.bias = {bias, bias};
  c.mlp.bias = keys.flag("mlp_bias", false);
  c.tie_embeddings = keys.flag("tie_word_embeddings", family.preset == Preset::gemma3);
}

void read_activation(JsonKeys& keys, DecoderConfig& c) {
  const bool gemma = c.preset == Preset::gemma3;
  const std::string key = gemma && keys.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = keys.text(key, gemma ? "gelu_pytorch_tanh" : "silu");
  if (name == "silu")
    c.mlp.kind = ops::ActivationKind::swiglu;
  else if (name == "gelu_pytorch_tanh")
    c.mlp.kind = ops::ActivationKind::geglu;
  else
    throw keys.error(key, "'{}' is not known; silu and gelu_pytorch_tanh are", name);
}

// The shortest pattern that repeats into these kinds.
std::vector<LayerKind> pattern_of(const std::vector<LayerKind>& kinds) {
  for (size_t length = 1;; ++length) {
    size_t i = 0;
    while (i < kinds.size() && kinds[i] == kinds[i % length]) ++i;
    if (i == kinds.size()) return {kinds.begin(), kinds.begin() + ptrdiff_t(length)};
  }
}

std::vector<LayerKind> listed_kinds(JsonKeys& keys, int64_t layers) {
  std::vector<LayerKind> kinds;
  for (const std::string& name : keys.texts("layer_types")) {
    if (name != "full_attention" && name != "sliding_attention")
      throw keys.error("layer_types", "'{}' is not known; full_attention and sliding_attention are", name);
    kinds.push_back(name == "full_attention" ? LayerKind::global : LayerKind::local);
  }
  if (int64_t(kinds.size()) != layers)
    throw keys.error("layer_types", "{} entries for {} layers", kinds.size(), layers);
  return kinds;
}

// The kind of every layer where nothing lists them: Gemma's every sixth is global, Qwen's last ones may be local.
std::vector<LayerKind> implied_kinds(JsonKeys& keys, const DecoderConfig& c) {
  std::vector<LayerKind> kinds(size_t(c.layers), LayerKind::global);
  const bool gemma = c.preset == Preset::gemma3;
  const int64_t every = gemma ? keys.integer("sliding_window_pattern", 6) : 0;
  const bool windows = keys.flag("use_sliding_window", false) && !keys.is_null("sliding_window");
  const int64_t first = windows ? keys.integer("max_window_layers", 28) : c.layers;
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (gemma ? every > 0 && (layer + 1) % every != 0 : layer >= first) kinds[size_t(layer)] = LayerKind::local;
  return kinds;
}

void read_layers(JsonKeys& keys, DecoderConfig& c) {
  const auto kinds = keys.has("layer_types") ? listed_kinds(keys, c.layers) : implied_kinds(keys, c);
  c.layer_pattern = pattern_of(kinds);
  c.attention.window.reset();
  for (LayerKind kind : kinds)
    if (kind == LayerKind::local) c.attention.window = keys.size("sliding_window", kMostPositions, kWindow);
}

// transformers reads this key in other families, and turns all features in these.
void refuse_partial_rotation(JsonKeys& keys) {
  if (keys.has("partial_rotary_factor") && keys.real("partial_rotary_factor") != 1)
    throw keys.error("partial_rotary_factor", "transformers leaves it out of account in this family: only 1 is meant");
}

RopeScalingConfig read_scaling(JsonKeys keys, int64_t max_positions) {
  RopeScalingConfig s;
  refuse_partial_rotation(keys);
  const std::string kind = keys.text("rope_type", keys.text("type", "default"));
  if (kind == "default") return s;
  if (kind != "linear" && kind != "llama3" && kind != "yarn")
    throw keys.error("rope_type", "'{}' is not known; default, linear, llama3 and yarn are", kind);
  s.factor = keys.real("factor");
  if (kind == "linear") s.kind = ops::RopeScaling::Kind::linear;
  if (kind == "linear") return s;
  s.original_positions = double(keys.size("original_max_position_embeddings", kMostPositions, max_positions));
  if (kind == "llama3") {
    s.kind = ops::RopeScaling::Kind::llama3;
    s.low_frequency_factor = keys.real("low_freq_factor");
    s.high_frequency_factor = keys.real("high_freq_factor");
    return s;
  }
  s.kind = ops::RopeScaling::Kind::yarn;
  if (keys.has("beta_fast")) s.beta_fast = keys.real("beta_fast");
  if (keys.has("beta_slow")) s.beta_slow = keys.real("beta_slow");
  if (keys.has("attention_factor")) s.attention_factor = keys.real("attention_factor");
  for (const char* key : {"mscale", "mscale_all_dim"})
    if (keys.has(key)) throw keys.error(key, "is not known here: give attention_factor");
  if (!keys.flag("truncate", true)) throw keys.error("truncate", "false is not known here");
  return s;
}

void read_rope(JsonKeys& keys, DecoderConfig& c, const Family& family) {
  const bool gemma = c.preset == Preset::gemma3;
  refuse_partial_rotation(keys);
  c.rope.theta = keys.real("rope_theta", family.theta);
  c.rope.scaling = {};
  c.rope.local_theta = {};
  if (gemma) c.rope.local_theta = keys.real("rope_local_base_freq", 1e4);
  if (keys.has("rope_scaling")) c.rope.scaling = read_scaling(keys.section("rope_scaling"), c.positions.max_positions);
  if (!keys.has("rope_parameters")) return;
  JsonKeys parameters = keys.section("rope_parameters");
  if (parameters.has("sliding_attention")) {
    JsonKeys local = parameters.section("sliding_attention");
    refuse_partial_rotation(local);
    if (local.text("rope_type", "default") != "default")
      throw local.error("rope_type", "local layers with scaled frequencies are not known here");
    c.rope.local_theta = local.real("rope_theta", c.rope.local_theta.value_or(1e4));
  }
  if (parameters.has("full_attention")) parameters = parameters.section("full_attention");
  c.rope.theta = parameters.real("rope_theta", c.rope.theta);
  c.rope.scaling = read_scaling(parameters, c.positions.max_positions);
}

void read_gemma(JsonKeys& keys, DecoderConfig& c) {
  const double scalar = keys.real("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) throw keys.error("query_pre_attn_scalar", "must be above 0, is {}", scalar);
  c.attention.logit_scale.init = 1 / std::sqrt(scalar);
  if (keys.has("attn_logit_softcapping"))
    throw keys.error("attn_logit_softcapping",
                     "transformers has the key and never caps these logits: only null is meant");
  if (keys.has("final_logit_softcapping")) c.final_softcap = keys.real("final_logit_softcapping");
  if (keys.flag("use_bidirectional_attention", false))
    throw keys.error("use_bidirectional_attention", "true: a decoder looks back only");
}

// Local layers turn unscaled here, as Gemma's do; without local layers there is no theta of theirs.
void check_local(JsonKeys& keys, DecoderConfig& c) {
  if (c.layer_pattern == std::vector<LayerKind>{LayerKind::global}) c.rope.local_theta = {};
  const bool local =
      std::find(c.layer_pattern.begin(), c.layer_pattern.end(), LayerKind::local) != c.layer_pattern.end();
  if (local && c.preset != Preset::gemma3 && c.rope.scaling.kind != ops::RopeScaling::Kind::none)
    throw keys.error("rope_scaling", "local layers with scaled frequencies are not known here");
}

// Of the text model, or else of the whole.
config::SpecialIds read_special_ids(JsonKeys& keys, JsonKeys& outer) {
  const auto ids = [&](const char* key) {
    const std::vector<int64_t> own = keys.ids(key, kMostIds);
    return own.empty() ? outer.ids(key, kMostIds) : own;
  };
  const auto first = [&](const char* key) {
    const std::vector<int64_t> all = ids(key);
    return all.empty() ? std::nullopt : std::optional(all[0]);
  };
  return {first("bos_token_id"), ids("eos_token_id"), first("pad_token_id")};
}

}  // namespace

HuggingFaceConfig read_hugging_face_config(std::string_view json, const std::string& where) {
  JsonKeys outer(io::parse_foreign_json(json, where), where + ": ");
  const bool beside_vision = outer.text("model_type") == "gemma3";
  JsonKeys keys = beside_vision ? outer.section("text_config") : outer;
  const Family& family = family_of(keys);
  HuggingFaceConfig out;
  apply_preset(out.decoder, family.preset);
  read_sizes(keys, out.decoder, family);
  read_activation(keys, out.decoder);
  read_layers(keys, out.decoder);
  read_rope(keys, out.decoder, family);
  if (family.preset == Preset::gemma3) read_gemma(keys, out.decoder);
  check_local(keys, out.decoder);
  for (JsonKeys* level : {&outer, &keys})
    out.element_type = level->text("dtype", level->text("torch_dtype", out.element_type));
  out.special_ids = read_special_ids(keys, outer);
  keys.ignore({"architectures",
               "transformers_version",
               "use_cache",
               "initializer_range",
               "_name_or_path",
               "pretraining_tp",
               "attention_dropout",
               "max_window_layers",
               "use_sliding_window",
               "sliding_window",
               "sliding_window_pattern",
               "_sliding_window_pattern",
               "cache_implementation",
               "chunk_size_feed_forward",
               "id2label",
               "label2id",
               "output_attentions",
               "output_hidden_states",
               "return_dict",
               "is_encoder_decoder",
               "problem_type"});
  out.unread = keys.unread();
  out.decoder = read_decoder_config(config::parse(config::print(config::to_node(out.decoder)), where));
  return out;
}

}  // namespace keel::models
