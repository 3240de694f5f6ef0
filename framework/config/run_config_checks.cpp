// Reading a whole config, and what must hold between its keys.
#include <filesystem>

#include "framework/config/run_config.h"

namespace keel::config {
namespace {

void check_data(const DataConfig& data, const Node& section) {
  if (data.train.empty()) throw section["train"].error("needs at least one source, is an empty list");
  if (data.valid && data.valid->empty())
    throw section["valid"].error("needs at least one source, is an empty list (write null for none)");
  for (size_t i = 0; i < data.train.size(); ++i)
    if (data.train[i].weight.has_value() != data.train[0].weight.has_value())
      throw section["train"].error(
          "some sources have a weight, others none ({}): give each one, or none, and an epoch shows each sample of all "
          "once",
          data.train[data.train[i].weight ? 0 : i].path);
}

// So that configs are compared without weights that say nothing.
void drop_idle_weights(DataConfig& data) {
  if (data.train.size() == 1) data.train[0].weight.reset();
  if (data.valid)
    for (DataSource& source : *data.valid) source.weight.reset();
}

void check_name(const std::string& name, const Node& node) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    throw node.error("must be the name of a folder, without slashes, is {} (folders above it: log.directory)",
                     in_quotes(name));
}

void check_length(const TrainConfig& train, const Node& section) {
  if (train.steps && train.tokens)
    throw section["tokens"].error(
        "train.steps is {}, train.tokens {}: give one of the two (train.steps=null takes one away)", *train.steps,
        *train.tokens);
  if (!train.steps && !train.tokens) throw section["steps"].error("missing: give train.steps or train.tokens");
}

void check_schedule(const RunConfig& config, const Node& section) {
  const ScheduleConfig& schedule = config.schedule;
  bool wsd = schedule.kind == ScheduleKind::wsd;
  if (wsd && !schedule.decay_steps) throw section["decay_steps"].error("missing: kind wsd needs it");
  if (!wsd && schedule.decay_steps)
    throw section["decay_steps"].error("only kind wsd has a final descent of its own, kind is {}",
                                       enum_names(schedule.kind)[size_t(schedule.kind)]);
  int64_t steps = config.total_steps(), decay = schedule.decay_steps.value_or(0);
  if (schedule.warmup_steps > steps || decay > steps - schedule.warmup_steps)
    throw section[decay > steps ? "decay_steps" : "warmup_steps"].error(
        "warmup_steps {} and decay_steps {} do not fit into a run of {} steps", schedule.warmup_steps, decay, steps);
}

void check_spike(const SpikeConfig& spike, const Node& section) {
  if (spike.min_history > spike.window)
    throw section["min_history"].error("must be at most window, {}, or no step is ever judged; is {}", spike.window,
                                       spike.min_history);
}

// The product must leave room for sums over it.
void check_size(const RunConfig& config, const Node& section) {
  constexpr int64_t kMostTokens = int64_t(1) << 48;
  if (config.batch.sequences > kMostTokens / config.data.sequence_length)
    throw section["sequences"].error("{} sequences of {} tokens are more than 2^48 tokens a step",
                                     config.batch.sequences, config.data.sequence_length);
}

}  // namespace

int64_t RunConfig::total_steps() const {
  if (train.steps) return *train.steps;
  int64_t tokens = train.tokens.value_or(0), step = tokens_per_step();
  return tokens / step + (tokens % step != 0);
}

RunConfig read_run_config(const Node& root, const std::string& name, std::span<const KnownKey> elsewhere) {
  RunConfig config;
  config.name = name;
  config.source = root;
  read(root, config, elsewhere);
  check_name(config.name, root["name"]);
  check_data(config.data, root["data"]);
  drop_idle_weights(config.data);
  check_size(config, root["batch"]);
  check_length(config.train, root["train"]);
  check_schedule(config, root["schedule"]);
  check_spike(config.stability.spike, root["stability"]["spike"]);
  return config;
}

RunConfig load_run_config(const std::string& path, std::span<const std::string> overrides,
                          std::span<const KnownKey> elsewhere) {
  return read_run_config(load(path, overrides), std::filesystem::path(path).stem().string(), elsewhere);
}

Layout check_layout(const RunConfig& config, int64_t world_size) {
  const ParallelConfig& parallel = config.parallel;
  Node section = config.source["parallel"], batch = config.source["batch"];
  require(world_size > 0, "check_layout: {} ranks", world_size);
  for (auto [key, value] : {std::pair("tensor", parallel.tensor), {"data", parallel.data.value_or(1)}})
    if (value < 1) throw section[key].error("must be >= 1, is {}", value);
  for (auto [key, value] :
       {std::pair("sequences", config.batch.sequences), {"micro_sequences", config.batch.micro_sequences.value_or(1)}})
    if (value < 1) throw batch[key].error("must be >= 1, is {}", value);
  if (parallel.ranks && *parallel.ranks != world_size)
    throw section["ranks"].error("{} ranks are expected, {} were started", *parallel.ranks, world_size);
  if (world_size % parallel.tensor != 0)
    throw section["tensor"].error("{} ranks do not divide into tensor groups of {}", world_size, parallel.tensor);
  Layout layout{parallel.tensor, world_size / parallel.tensor, 1};
  if (parallel.data.value_or(layout.data) != layout.data)
    throw section["data"].error("{} x tensor {} makes {} ranks, {} were started (auto takes what there is)",
                                parallel.data.value(), parallel.tensor, parallel.data.value() * parallel.tensor,
                                world_size);
  int64_t micro = config.batch.micro_sequences.value_or(1), sequences = config.batch.sequences;
  if (sequences % layout.data != 0 || sequences / layout.data % micro != 0)
    throw batch["sequences"].error("{} sequences do not divide into {} data ranks x micro_sequences {}", sequences,
                                   layout.data, micro);
  layout.sequences_per_data_rank = sequences / layout.data;
  return layout;
}

}  // namespace keel::config
