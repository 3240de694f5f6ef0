// keel train CONFIG [key=value...]
#include <unistd.h>

#include <csignal>

#include "checkpoints/hook.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"
#include "framework/ops/product_rate.h"
#include "framework/train/evaluation_hook.h"
#include "framework/train/progress_hook.h"
#include "framework/train/stability_hook.h"
#include "framework/train/time_limit_hook.h"
#include "framework/train/trainer.h"
#include "launch/commands.h"
#include "launch/environment.h"
#include "launch/run_setup.h"

namespace keel {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  bool print_config = false;
};

optim::ScheduleKind schedule_kind(config::ScheduleKind kind) {
  switch (kind) {
    case config::ScheduleKind::cosine:
      return optim::ScheduleKind::cosine;
    case config::ScheduleKind::wsd:
      return optim::ScheduleKind::warmup_stable_decay;
    default:
      return optim::ScheduleKind::constant;
  }
}

train::TrainerOptions trainer_options(const config::RunConfig& run) {
  train::TrainerOptions options;
  options.total_steps = run.total_steps();
  options.schedule = {.kind = schedule_kind(run.schedule.kind),
                      .peak = run.optimizer.lr,
                      .warmup_steps = run.schedule.warmup_steps,
                      .total_steps = options.total_steps,
                      .decay_steps = run.schedule.decay_steps.value_or(0),
                      .final_ratio = run.schedule.final_ratio};
  options.adamw = {run.optimizer.beta1, run.optimizer.beta2, run.optimizer.eps};
  options.weight_decay = run.optimizer.weight_decay;
  options.independent_decay = run.optimizer.decay == config::DecayKind::independent;
  options.clip_norm = run.optimizer.clip_norm.value_or(0);
  options.qk_clip_tau = run.stability.qk_clip ? run.stability.qk_clip->tau : 0;
  options.loss = {run.train.z_loss, run.train.label_smoothing};
  options.telemetry_every = run.telemetry.every.value_or(0);
  options.zero = run.parallel.zero;
  return options;
}

train::StabilityOptions stability_options(const config::StabilityConfig& c) {
  return {.max_skips = c.max_skips,
          .spikes = c.spike.enabled,
          .spike = {c.spike.window, c.spike.min_history, c.spike.sigmas, c.spike.deviation_floor}};
}

// Where nothing bounds a head's logits that QK-clip could scale, the config is refused.
void check_qk_clip(const FullConfig& config) {
  if (!config.run.stability.qk_clip) return;
  for (int64_t layer = 0; layer < config.model.layers; ++layer) {
    const bool normalised = config.model.qk_kind(layer) != ops::QkNormKind::none;
    const bool gains = config.model.attention.qk_norm.weight != nn::QkWeight::none;
    if (normalised && !gains && config.model.scale_kind(layer) == nn::LogitScaleKind::fixed)
      throw config.run.source["stability"]["qk_clip"].error(
          "layer {} has QK-Norm without gains and a fixed logit scale, so there is nothing to scale", layer);
  }
}

volatile std::sig_atomic_t signal_seen = 0;

void on_signal(int) {
  signal_seen = 1;
}

train::Throughput throughput_of(const nn::ModelCost& cost, comm::World& world, DType type) {
  const double attention = cost.attention_operations, products = 6.0 * double(cost.product_parameters);
  const double own = ops::measure_product_rate(type, 1024, 0.3);
  return {.operations_full = products + attention,
          .operations_causal = products + attention / 2,
          .peak_operations_per_second = comm::all_reduce_value(world.all(), own)};
}

// All parts of one run, in the order in which they are made.
class TrainingRun {
 public:
  TrainingRun(comm::World& world, FullConfig config)
      : world_(world),
        config_(std::move(config)),
        layout_(config::check_layout(config_.run, world.size())),
        directory_(config_.run.log.directory + "/" + config_.run.name),
        decoder_(config_.model),
        training_data_(open_training_data(config_)),
        order_(training_data_.training_order(uint64_t(config_.run.seed))),
        mesh_(world.all(), int(layout_.tensor)),
        group_(mesh_.tensor()) {}

  int run();

 private:
  void claim_directory();
  void prepare_data();
  void announce(const train::BatchSizes& sizes);
  void resume_or_initialise(train::Trainer& trainer, checkpoints::CheckpointHook& checkpoint,
                            train::RunFilesHook& files);

  comm::World& world_;
  FullConfig config_;
  config::Layout layout_;
  std::string directory_;
  models::Decoder decoder_;
  data::Dataset training_data_;
  data::SampleOrder order_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;
  std::optional<data::Dataset> validation_data_;
  io::IoThread io_;
  std::optional<io::RunLock> lock_;
};

void TrainingRun::claim_directory() {
  world_.on_rank_0([&] {
    io::create_directories(directory_);
    lock_.emplace(directory_);
    return std::string();
  });
}

void TrainingRun::prepare_data() {
  training_data_.check_batch({.global_batch = config_.run.batch.sequences, .data_ranks = int(layout_.data)});
  if (config_.run.data.valid) validation_data_.emplace(open_validation_data(config_));
  if (!config_.run.data.verify) return;
  world_.on_rank_0([&] {
    training_data_.verify_ids();
    if (validation_data_) validation_data_->verify_ids();
    return std::string();
  });
}

void TrainingRun::announce(const train::BatchSizes& sizes) {
  const nn::ModelCost cost = decoder_.cost(config_.run.data.sequence_length);
  log::info("{}: {} parameters ({} in QK-Norm), {} ranks = tensor {} x data {}, {} threads each, {}", config_.run.name,
            human_count(double(cost.parameters)), human_count(double(cost.qk_norm_parameters)), world_.size(),
            layout_.tensor, layout_.data, world_.threads(), name_of(activation_type(config_)));
  log::info("a step: {} sequences of {} tokens, {} micro-steps of {} on each data rank", config_.run.batch.sequences,
            sizes.length, sizes.micro_steps, sizes.micro_sequences);
  int64_t decayed = 0, plain = 0;
  for (const nn::Parameter& parameter : decoder_.parameters().all())
    (parameter.spec.decayed ? decayed : plain) += parameter.spec.shape.elements();
  log::info("weight decay on {} weights, none on {} gains, scales and biases", human_count(double(decayed)),
            human_count(double(plain)));
}

void TrainingRun::resume_or_initialise(train::Trainer& trainer, checkpoints::CheckpointHook& checkpoint,
                                       train::RunFilesHook&) {
  const std::optional<std::string> path = checkpoint.find(config_.run.checkpoint.resume);
  if (path) {
    checkpoint.load(*path);
    log::info("resumed from {} at step {}", *path, trainer.progress().step);
  } else {
    decoder_.parameters().initialise(uint64_t(config_.run.seed));
  }
  trainer.weights_changed();
}

int TrainingRun::run() {
  check_qk_clip(config_);
  prepare_data();
  claim_directory();
  const train::BatchSizes sizes = batch_sizes(config_, layout_);
  decoder_.allocate(decoder_layout(config_, mesh_, group_, {sizes.micro_sequences, sizes.length}, true));
  announce(sizes);

  train::StepBatches batches(training_data_, sizes, config_.run.data.document_mask);
  train::Trainer trainer(decoder_, mesh_, batches, order_, trainer_options(config_.run));
  const train::Throughput throughput = throughput_of(decoder_.cost(sizes.length), world_, activation_type(config_));
  const bool speaker = world_.rank() == 0;
  train::RunFilesHook files(io_, {directory_, speaker, config_.run.telemetry.tensorboard, throughput});
  train::StabilityHook stability(stability_options(config_.run.stability));
  train::ProgressHook progress({.speaker = speaker,
                                .terminal = isatty(STDERR_FILENO) == 1,
                                .every = config_.run.log.every,
                                .total_steps = config_.run.total_steps(),
                                .throughput = throughput});
  train::TimeLimitHook time_limit(
      config_.run.train.stop_after ? double(config_.run.train.stop_after->count()) : 0, [] { return signal_seen != 0; },
      [&] { trainer.request_stop(); });
  std::optional<train::Evaluation> evaluation;
  std::optional<train::EvaluationHook> evaluation_hook;
  if (validation_data_) {
    evaluation.emplace(*validation_data_, sizes, config_.run.data.document_mask,
                       config_.run.eval.sequences.value_or(0));
    evaluation_hook.emplace(*evaluation, decoder_, mesh_, files, config_.run.eval.every.value_or(0),
                            config_.run.total_steps());
  }
  checkpoints::CheckpointHook checkpoint(
      checkpoint_parts(config_, directory_, world_, mesh_, io_, trainer, training_data_));

  trainer.add(stability);
  trainer.add(time_limit);
  trainer.add(files);
  trainer.add(progress);
  if (evaluation_hook) trainer.add(*evaluation_hook);
  trainer.add(checkpoint);
  resume_or_initialise(trainer, checkpoint, files);
  if (speaker) write_environment(directory_, config_.text(), world_);

  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
  const train::Ending ending = trainer.run();
  if (ending.outcome == train::Outcome::done) log::info("done: {}", directory_);
  if (ending.outcome == train::Outcome::unstable)
    log::error("stopped at step {}: {}", trainer.progress().step, ending.reason);
  if (ending.outcome == train::Outcome::saved_early)
    log::info("{}: saved in {}; the same command goes on", ending.reason, directory_);
  return ending.outcome == train::Outcome::done ? 0 : ending.outcome == train::Outcome::unstable ? 3 : 4;
}

int run(const Arguments& arguments, comm::World& world) {
  // Rank 0 reads and checks the file; the others are told what it resolved to.
  const std::string text =
      world.on_rank_0([&] { return read_full_config(arguments.config, arguments.overrides).text(); });
  if (arguments.print_config) {
    if (world.rank() == 0) fmt::print("{}", text);
    return 0;
  }
  return TrainingRun(world, parse_full_config(text, arguments.config, {})).run();
}

}  // namespace

void add_train(CLI::App& program, comm::World& world, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("train", "Train a model, or go on with a run that stopped");
  command->add_option("config", arguments->config, "A YAML file; configs/README.md lists every key")->required();
  command->add_option("overrides", arguments->overrides,
                      "key.path=value, laid over the file, such as optimizer.lr=1e-3");
  command->add_flag("--print-config", arguments->print_config, "Print the resolved config and stop");
  command->callback([arguments, &world, &exit_code] { exit_code = run(*arguments, world); });
}

}  // namespace keel
