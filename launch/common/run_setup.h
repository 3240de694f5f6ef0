// From a resolved config to the parts of a run, for every subcommand that needs a model.
#pragma once

#include "framework/comm/communicator.h"
#include "framework/config/run_config.h"
#include "framework/data/dataset.h"
#include "framework/parallel/mesh.h"
#include "framework/parallel/tensor_parallel.h"
#include "framework/train/batches.h"
#include "models/decoder/decoder.h"

namespace keel {

// Both halves of a config, checked.
struct FullConfig {
  config::RunConfig run;
  models::DecoderConfig model;

  // The whole as YAML, as it is printed, saved with the run and stored in checkpoints.
  std::string text() const;
};

// Reads a config file with overrides. An `auto` vocabulary is taken from the training data's notes, and the checksum of
// the tokenizer where none is stored.
FullConfig read_full_config(const std::string& path, std::span<const std::string> overrides);
// From a tree: a cell of an ablation.
FullConfig read_full_config(const config::Node& root);
// From a stored text, with overrides.
FullConfig parse_full_config(const std::string& text, const std::string& name, std::span<const std::string> overrides);

// With another model, read again so that every rule holds; errors name `name`.
FullConfig with_model(FullConfig config, const models::DecoderConfig& model, const std::string& name);
// With the `taken`-th of stability.fallbacks laid over it, counted from 1; 0: as it is.
FullConfig with_fallback(const FullConfig& config, int64_t taken);

// Where a config is not the default, or the preset, as overrides: "optimizer.lr=0.003". Its name is left out.
std::vector<std::string> chosen_keys(const FullConfig& config);

// What can be refused before a file or a device is touched: how the ranks are laid out, and what the tensor axis must
// divide.
config::Layout layout_for(const FullConfig& config, int64_t ranks);

// Of the first source whose first file has notes and is there.
std::optional<data::TokenNotes> training_notes(const config::RunConfig& run);

data::Dataset open_training_data(const FullConfig& config);
// Of the config's data.valid, or of the files with that prefix. Throws where neither names any, or their tokens are of
// another tokenizer than the training data.
data::Dataset open_validation_data(const FullConfig& config, const std::string& prefix = "");

// The micro-batches of a step. `micro_sequences: auto` is the largest divisor of a data rank's sequences whose tokens
// stay below about 8,000.
train::BatchSizes batch_sizes(const FullConfig& config, const config::Layout& layout);

DType activation_type(const FullConfig& config);

// Where a model runs, and who shares it.
struct Place {
  Device device;
  const parallel::Mesh& mesh;
  nn::TensorGroup& group;
};
models::DecoderLayout decoder_layout(const FullConfig& config, const Place& place, nn::BatchShape batch, bool training);

}  // namespace keel
