#include "launch/common/run_setup.h"

#include <regex>

#include "framework/data/tokenizer.h"
#include "framework/ops/attention/logit_place.h"
#include "models/decoder/parallelize.h"

namespace keel {
namespace {

using config::Node;

std::vector<data::Source> sources_of(const std::vector<config::DataSource>& sources) {
  std::vector<data::Source> out;
  for (const config::DataSource& source : sources) {
    data::Source& s = out.emplace_back(data::Source{source.path, source.weight});
    if (source.type)
      s.type = *source.type == config::IdType::uint16 ? data::TokenType::uint16 : data::TokenType::uint32;
    if (source.document_end) s.document_end = int32_t(*source.document_end);
  }
  return out;
}

int64_t vocabulary_of_data(const config::RunConfig& run) {
  int64_t vocabulary = 0;
  for (const config::DataSource& source : run.data.train) {
    const std::vector<std::string> files = data::matching_files(source.path);
    if (files.empty())
      throw run.source["data"]["train"].error("{}: no token file (.bin or .npy) matches this pattern", source.path);
    const auto notes = data::notes_of(files[0]);
    if (!notes)
      throw run.source["model"].error(
          "model.vocab is not given, and {} has no notes (.json) that say it: give model.vocab", source.path);
    vocabulary = std::max(vocabulary, notes->vocabulary);
  }
  return vocabulary;
}

// Nothing for bytes, or where the file is not there: what needs no text goes without it.
std::optional<int64_t> tokenizer_crc32c_of(const config::RunConfig& run) {
  try {
    if (run.data.tokenizer) return data::tokenizer_crc32c(*run.data.tokenizer);
    const auto notes = training_notes(run);
    if (!notes || notes->model.empty() || notes->model_crc32c) return notes ? notes->model_crc32c : std::nullopt;
    return data::tokenizer_crc32c(notes->model_path());
  } catch (const Error&) {
    return std::nullopt;
  }
}

FullConfig complete(config::RunConfig run) {
  const auto elsewhere = config::known_keys<config::RunConfig>("");
  FullConfig full{std::move(run), {}};
  full.model = models::read_decoder_config(full.run.model, elsewhere);
  if (full.model.vocab.is_auto()) full.model.vocab = vocabulary_of_data(full.run);
  if (!full.run.data.tokenizer_crc32c) full.run.data.tokenizer_crc32c = tokenizer_crc32c_of(full.run);
  if (full.model.positions.learned && full.run.data.sequence_length > full.model.positions.max_positions)
    throw full.run.source["data"]["sequence_length"].error("{} is above model.positions.max_positions {}",
                                                           full.run.data.sequence_length,
                                                           full.model.positions.max_positions);
  full.run.model = config::to_node(full.model);
  return full;
}

data::DatasetOptions dataset_options(const FullConfig& config) {
  return {.T = config.run.data.sequence_length,
          .vocabulary = config.model.vocab.value(),
          .document_mask = config.run.data.document_mask};
}

}  // namespace

std::string FullConfig::text() const {
  return config::print(config::to_node(run));
}

FullConfig read_full_config(const std::string& path, std::span<const std::string> overrides) {
  return complete(config::load_run_config(path, overrides, config::known_keys<models::DecoderConfig>("model")));
}

FullConfig read_full_config(const Node& root) {
  return complete(config::read_run_config(root, "", config::known_keys<models::DecoderConfig>("model")));
}

FullConfig parse_full_config(const std::string& text, const std::string& name, std::span<const std::string> overrides) {
  return read_full_config(config::with_overrides(config::parse(text, name), overrides));
}

FullConfig with_model(FullConfig config, const models::DecoderConfig& model, const std::string& name) {
  config.run.model = config::to_node(model);
  return parse_full_config(config.text(), name, {});
}

FullConfig with_fallback(const FullConfig& config, int64_t taken) {
  if (taken == 0) return config;
  if (taken > int64_t(config.run.stability.fallbacks.size()))
    throw config.run.source["stability"].error(
        "stability.fallbacks: the run has taken {} of them, and {} are given: put those back that it has taken", taken,
        config.run.stability.fallbacks.size());
  const Node named = config.run.source.with("name", Node::make_text(config.run.name));
  FullConfig next = read_full_config(named.with_all(config.run.stability.fallbacks.at(size_t(taken - 1))));
  next.run.train.stop_after = config.run.train.stop_after;  // which may be what is left of an ablation's
  return next;
}

std::vector<std::string> chosen_keys(const FullConfig& config) {
  static const std::regex kNulls(", [a-z_]+: null");
  std::vector<std::string> chosen;
  const auto add = [&](const std::string& prefix, const std::vector<config::Difference>& differences) {
    for (const config::Difference& d : differences) {
      if (d.key == "name" || d.key == "model") continue;
      // Sources of data say by null what is as usual.
      const std::string value = d.key.starts_with("data.") ? std::regex_replace(d.now, kNulls, "") : d.now;
      chosen.push_back(fmt::format("{}{}={}", prefix, d.key, value));
    }
  };
  models::DecoderConfig preset;
  models::apply_preset(preset, config.model.preset);
  preset.preset = models::Preset::none;
  add("", config::differences(config::RunConfig(), config.run));
  add("model.", config::differences(preset, config.model));
  return chosen;
}

config::Layout layout_for(const FullConfig& config, int64_t ranks) {
  const config::Layout layout = config::check_layout(config.run, ranks);
  models::check_tensor_ranks(config.model, layout.tensor, config.run.source["parallel"]["tensor"]);
  using ops::LogitPlace;
  if (config.run.telemetry.every && (config.run.batch.sequences > LogitPlace::kMostSequences ||
                                     config.run.data.sequence_length > LogitPlace::kMostPositions))
    throw config.run.source["telemetry"]["every"].error(
        "telemetry tells where the largest logits stand among at most {} sequences of {} tokens in a step: set "
        "telemetry.every=null, or use smaller batches",
        LogitPlace::kMostSequences, LogitPlace::kMostPositions);
  return layout;
}

std::optional<data::TokenNotes> training_notes(const config::RunConfig& run) {
  for (const config::DataSource& source : run.data.train) {
    const std::vector<std::string> files = data::matching_files(source.path);
    if (files.empty()) continue;
    if (auto notes = data::notes_of(files[0])) return notes;  // a pattern's files are of one making, and may be many
  }
  return std::nullopt;
}

data::Dataset open_training_data(const FullConfig& config) {
  return data::Dataset(sources_of(config.run.data.train), dataset_options(config));
}

data::Dataset open_validation_data(const FullConfig& config, const std::string& prefix) {
  if (prefix.empty() && !config.run.data.valid)
    throw config.run.source["data"].error("there is no held-out data: give data.valid, or --data PREFIX");
  data::Dataset valid(prefix.empty() ? sources_of(*config.run.data.valid) : std::vector<data::Source>{{prefix}},
                      dataset_options(config));
  if (const data::TokenNotes* notes = valid.notes()) {
    if (const auto training = training_notes(config.run)) check_same_tokenizer(*training, *notes);
    const auto& trained = config.run.data.tokenizer_crc32c;
    if (trained && notes->model_crc32c && trained != notes->model_crc32c)
      throw input_error(
          "{}: its tokens are of another tokenizer than the model's (CRC32C {}, data.tokenizer_crc32c {}): run "
          "`keel tokenize` with the model's as --model",
          notes->path, *notes->model_crc32c, *trained);
  }
  return valid;
}

train::BatchSizes batch_sizes(const FullConfig& config, const config::Layout& layout) {
  constexpr int64_t kTokens = 8192;  // enough rows for efficient products; activations stay moderate
  const int64_t rows = layout.sequences_per_data_rank, T = config.run.data.sequence_length;
  int64_t micro = 1;
  for (int64_t divisor = 1; divisor <= rows && divisor * T <= kTokens; ++divisor)
    if (rows % divisor == 0) micro = divisor;
  micro = config.run.batch.micro_sequences.value_or(micro);
  return {.micro_sequences = micro, .length = T, .micro_steps = rows / micro};
}

DType activation_type(const FullConfig& config) {
  return config.run.precision == config::Precision::bf16 ? DType::bf16 : DType::f32;
}

models::DecoderLayout decoder_layout(const FullConfig& config, const Place& place, nn::BatchShape batch,
                                     bool training) {
  return {.parameters = {.device = place.device,
                         .activation = activation_type(config),
                         .tensor = place.mesh.tensor_position(),
                         .data_ranks = place.mesh.data().size()},
          .group = &place.group,
          .batch = batch,
          .training = training};
}

}  // namespace keel
