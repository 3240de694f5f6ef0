// What a run is told: one struct per section of the config file. Meaning, unit, range and default of every key are
// described in run_config.cpp and listed in configs/README.md. Values here are read, in range and agree with each
// other; what depends on the model is checked by models, what depends on the ranks by check_layout.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "framework/config/fields.h"

namespace keel::config {

enum class Precision { bf16, fp32 };
enum class DeviceKind { cpu, cuda };
enum class OptimizerKind { adamw };
enum class RoundingKind { nearest, stochastic };
enum class DecayKind { lr, independent };
enum class ScheduleKind { cosine, wsd, constant };
enum class IdType { uint16, uint32 };
enum class ResumeFrom { automatic, none };

struct DataSource {
  std::string path;
  std::optional<double> weight;  // null as well where it says nothing: of a single source, of held-out ones
  std::optional<IdType> type;
  std::optional<int64_t> document_end;
};

// Ids as other tools name them.
struct SpecialIds {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;
  std::optional<int64_t> pad;
  bool operator==(const SpecialIds&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::optional<std::vector<DataSource>> valid;
  int64_t sequence_length = 1024;
  bool document_mask = false;
  std::optional<std::string> tokenizer;
  std::optional<int64_t> tokenizer_crc32c;
  SpecialIds special_ids;
  bool verify = true;
};

struct BatchConfig {
  int64_t sequences = 32;
  Auto<int64_t> micro_sequences;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  DecayKind decay = DecayKind::lr;
  std::optional<double> clip_norm = 1.0;
  RoundingKind rounding = RoundingKind::nearest;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::cosine;
  int64_t warmup_steps = 0;
  std::optional<int64_t> decay_steps;
  double final_ratio = 0.1;
};

struct TrainConfig {
  std::optional<int64_t> steps;  // exactly one of the two
  std::optional<int64_t> tokens;
  std::optional<std::chrono::seconds> stop_after;
  double z_loss = 0;
  double label_smoothing = 0;
  bool graphs = true;
};

struct EvalConfig {
  std::optional<int64_t> every = 500;
  bool first = false;
  std::optional<int64_t> sequences;
  std::vector<std::string> prompts;
  int64_t sample_tokens = 50;
};

struct ParallelConfig {
  int64_t tensor = 1;
  Auto<int64_t> data;
  bool zero = true;
  std::optional<int64_t> ranks;
  bool tensor_across_hosts = false;
  std::chrono::seconds time_limit{600};
};

struct CheckpointConfig {
  std::optional<int64_t> every = 1000;
  int64_t keep = 3;
  std::optional<int64_t> keep_every;
  std::variant<ResumeFrom, std::string> resume = ResumeFrom::automatic;
  std::optional<std::string> weights_from;
  int64_t parts = 1;
  std::map<std::string, std::string> mpi_hints;
  bool weights_only = false;
  bool final = true;
  bool background = true;
  int64_t max_failed = 3;
  std::chrono::seconds time_limit{1800};
  std::chrono::seconds final_save_limit{600};
};

struct SpikeConfig {
  bool enabled = true;
  int64_t window = 128;
  int64_t min_history = 128;
  double sigmas = 6;
  double deviation_floor = 1e-3;
  double gradient_deviation_floor = 4;
  double update_deviation_floor = 0.25;
};

struct QkClipConfig {
  double tau = 100;
};

struct PerHeadConfig {
  double logit_factor = 8;
  double logit_floor = 50;
  double min_entropy = 1e-4;
};

struct LowerLrConfig {
  double factor = 0.5;
  int64_t steps = 100;
  int64_t times = 2;
};

struct RollbackConfig {
  int64_t times = 3;
  int64_t per_checkpoint = 2;
  bool leave_out = true;
  int64_t more_samples = 128;
};

struct StabilityConfig {
  int64_t max_skips = 3;
  int64_t max_skips_of_1000 = 50;
  SpikeConfig spike;
  PerHeadConfig per_head;
  LowerLrConfig lower_lr;
  RollbackConfig rollback;
  std::vector<Node> fallbacks;
  int64_t calm_steps = 1000;
  std::optional<std::string> on_event;
  std::chrono::seconds on_event_limit{30};
  std::optional<QkClipConfig> qk_clip;
  std::optional<int64_t> check_replicas = 1000;
};

struct TraceConfig {
  int64_t from = 10;
  int64_t steps = 5;
};

struct TelemetryConfig {
  std::optional<int64_t> every = 100;
  bool tensorboard = true;
  std::optional<TraceConfig> trace;
};

struct LogConfig {
  std::string directory = "runs";
  int64_t every = 10;
};

struct RunConfig {
  std::string name;
  int64_t seed = 1;
  Precision precision = Precision::bf16;
  Auto<DeviceKind> device;
  Node model;  // read by the family that model.kind names
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainConfig train;
  EvalConfig eval;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  StabilityConfig stability;
  TelemetryConfig telemetry;
  LogConfig log;
  Node ablate;  // read by keel ablate

  // What this was read from, for errors that point at a key: config.source["batch"]["sequences"].error(...).
  Node source;

  int64_t tokens_per_step() const { return batch.sequences * data.sequence_length; }
  // train.steps, or enough steps for train.tokens.
  int64_t total_steps() const;
};

std::vector<std::string> enum_names(ScheduleKind);

void describe(Fields& fields, SpecialIds& c);
void describe(Fields& fields, DataConfig& c);
void describe(Fields& fields, StabilityConfig& c);
void describe(Fields& fields, RunConfig& c);

// A config file with its overrides; `elsewhere` holds the keys of the model families,
// known_keys<DecoderConfig>("model"). Everything that needs neither the model nor the ranks is checked.
RunConfig load_run_config(const std::string& path, std::span<const std::string> overrides = {},
                          std::span<const KnownKey> elsewhere = {});
// The same from a tree: a stored config, an arm of an ablation. `name` is used where the tree has none.
RunConfig read_run_config(const Node& root, const std::string& name, std::span<const KnownKey> elsewhere = {});

// How a world of ranks is divided.
struct Layout {
  int64_t tensor = 1;
  int64_t data = 1;
  int64_t sequences_per_data_rank = 1;  // of each global batch
};

// Throws where the ranks, the mesh and the batch do not divide, with the numbers.
Layout check_layout(const RunConfig& config, int64_t world_size);

}  // namespace keel::config
