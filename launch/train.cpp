// keel train CONFIG [key=value...]
#include <unistd.h>

#include <csignal>

#include "checkpoints/agreement.h"
#include "checkpoints/hook.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"
#include "framework/ops/product_rate.h"
#include "framework/train/evaluation_hook.h"
#include "framework/train/progress_hook.h"
#include "framework/train/replica_hook.h"
#include "framework/train/time_limit_hook.h"
#include "launch/commands.h"
#include "launch/environment.h"
#include "launch/loaded_model.h"
#include "launch/train_options.h"

namespace keel {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  bool print_config = false;
};

volatile std::sig_atomic_t signal_seen = 0;

void on_signal(int) {
  signal_seen = 1;
}

// One run: its parts are members, in the order in which they are made.
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
        group_(mesh_.tensor()),
        sizes_(batch_sizes(config_, layout_)),
        speaker_(world.rank() == 0) {}

  int run();

 private:
  void prepare_data();
  void claim_directory();
  void announce();
  train::Throughput throughput();
  checkpoints::CheckpointOptions checkpoint_options();
  void start(train::Trainer& trainer, checkpoints::CheckpointHook& checkpoint, train::RunFilesHook& files);
  void take_weights(const std::string& path);
  int tell_ending(const train::Ending& ending, int64_t step);

  comm::World& world_;
  FullConfig config_;
  config::Layout layout_;
  std::string directory_, environment_;
  models::Decoder decoder_;
  data::Dataset training_data_;
  data::SampleOrder order_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;
  train::BatchSizes sizes_;
  bool speaker_;
  std::optional<data::Dataset> validation_data_;
  io::IoThread io_;
  std::optional<io::RunLock> lock_;
};

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

void TrainingRun::claim_directory() {
  environment_ = environment_text(world_);
  world_.on_rank_0([&] {
    io::create_directories(directory_);
    lock_.emplace(directory_);
    return std::string();
  });
}

void TrainingRun::announce() {
  const nn::ModelCost cost = decoder_.cost(sizes_.length);
  log::info("{}: {} parameters ({} in QK-Norm), {} ranks = tensor {} x data {}, {} threads each, {}", config_.run.name,
            human_count(double(cost.parameters)), human_count(double(cost.qk_norm_parameters)), world_.size(),
            layout_.tensor, layout_.data, world_.threads(), name_of(activation_type(config_)));
  log::info("a step: {} sequences of {} tokens, {} micro-steps of {} on each data rank", config_.run.batch.sequences,
            sizes_.length, sizes_.micro_steps, sizes_.micro_sequences);
  int64_t decayed = 0, plain = 0;
  for (const nn::Parameter& parameter : decoder_.parameters().all())
    (parameter.spec.decayed ? decayed : plain) += parameter.spec.shape.elements();
  log::info("weight decay on {} weights, none on {} gains, scales and biases", human_count(double(decayed)),
            human_count(double(plain)));
}

train::Throughput TrainingRun::throughput() {
  const nn::ModelCost cost = decoder_.cost(sizes_.length);
  const double products = 6.0 * double(cost.product_parameters);
  const double own = ops::measure_product_rate(activation_type(config_), 1024, 0.3);
  return {.operations_full = products + cost.attention_operations,
          .operations_causal = products + cost.attention_operations / 2,
          .peak_operations_per_second = comm::all_reduce_value(world_.all(), own)};
}

checkpoints::CheckpointOptions TrainingRun::checkpoint_options() {
  const config::CheckpointConfig& c = config_.run.checkpoint;
  return {.directory = directory_ + "/checkpoints",
          .every = c.every.value_or(0),
          .keep = c.keep,
          .final = c.final,
          .weights_only = c.weights_only,
          .parts = c.parts,
          .total_steps = config_.run.total_steps(),
          .mpi_hints = {c.mpi_hints.begin(), c.mpi_hints.end()},
          .config = config_.text(),
          .environment = environment_,
          .data_fingerprint = training_data_.fingerprint_text(uint64_t(config_.run.seed)),
          .qk_norm = qk_norm_text(config_.model),
          .compare_configs = [this](const std::string& stored) { return changes_since(stored, config_); }};
}

// Of a model made elsewhere: its config must be this one.
void TrainingRun::take_weights(const std::string& path) {
  checkpoints::together(world_.all(), [&] {
    check_same_model(checkpoints::read_contents(io_, path).state.config, path, config_);
    checkpoints::read_tensors(io_, path, {decoder_.parameters(), nullptr, false}, qk_norm_text(config_.model));
  });
  log::info("beginning with the weights of {}", path);
}

// Weights and progress: from a checkpoint, or from the seed.
void TrainingRun::start(train::Trainer& trainer, checkpoints::CheckpointHook& checkpoint, train::RunFilesHook& files) {
  const auto& resume = config_.run.checkpoint.resume;
  const std::string* path = std::get_if<std::string>(&resume);
  const std::string word =
      std::get_if<config::ResumeFrom>(&resume) && std::get<config::ResumeFrom>(resume) == config::ResumeFrom::none
          ? "none"
          : "auto";
  if (const auto found = checkpoint.find(path ? *path : word)) {
    const std::vector<std::string> changes = checkpoint.load(*found);
    log::info("going on from {} at step {}", *found, trainer.progress().step);
    for (const std::string& change : changes) {
      log::info("changed since: {}", change);
      files.note("config_changed", {{"change", change}});
    }
  } else {
    decoder_.parameters().initialise(uint64_t(config_.run.seed));
    if (const auto& from = config_.run.checkpoint.weights_from) take_weights(*from);
  }
  trainer.weights_changed();
  if (!speaker_) return;
  io::write_file(directory_ + "/config.yaml", config_.text());
  io::write_file(directory_ + "/environment.json", environment_);
}

int TrainingRun::tell_ending(const train::Ending& ending, int64_t step) {
  switch (ending.outcome) {
    case train::Outcome::done:
      log::info("done after {} steps: {}", step, directory_);
      return 0;
    case train::Outcome::unstable:
      if (speaker_) log::error("stopped at step {}: {}", step, ending.reason);
      return 3;
    default:
      log::info("{}; saved at step {}, and the same command goes on", ending.reason, step);
      return 4;
  }
}

int TrainingRun::run() {
  check_qk_clip(config_);
  prepare_data();
  claim_directory();
  decoder_.allocate(decoder_layout(config_, mesh_, group_, {sizes_.micro_sequences, sizes_.length}, true));
  announce();

  const config::RunConfig& run = config_.run;
  const train::Throughput throughput = this->throughput();
  train::StepBatches batches(training_data_, sizes_, run.data.document_mask);
  train::Trainer trainer(decoder_, mesh_, batches, order_, trainer_options(run));
  train::StabilityHook stability(stability_options(run.stability));
  train::TimeLimitHook time_limit(
      run.train.stop_after ? double(run.train.stop_after->count()) : 0, [] { return signal_seen != 0; },
      [&] { trainer.request_stop(); });
  train::ReplicaHook replicas(decoder_.parameters(), mesh_, run.stability.check_replicas.value_or(0));
  train::RunFilesHook files(io_, {directory_, speaker_, run.telemetry.tensorboard, throughput});
  train::ProgressHook progress({speaker_, isatty(STDERR_FILENO) == 1, run.log.every, run.total_steps(), throughput});
  std::optional<train::Evaluation> evaluation;
  std::optional<train::EvaluationHook> evaluation_hook;
  if (validation_data_) {
    evaluation.emplace(*validation_data_, sizes_, run.data.document_mask, run.eval.sequences.value_or(0));
    evaluation_hook.emplace(*evaluation, decoder_, mesh_, files, run.eval.every.value_or(0), run.total_steps());
  }
  checkpoints::CheckpointHook checkpoint(
      {world_.all(), world_.io_comm(), io_, decoder_.parameters(), mesh_, trainer, run.parallel.zero},
      checkpoint_options());

  for (train::Hook* hook : std::initializer_list<train::Hook*>{&stability, &replicas, &time_limit, &files, &progress})
    trainer.add(*hook);
  if (evaluation_hook) trainer.add(*evaluation_hook);
  trainer.add(checkpoint);
  start(trainer, checkpoint, files);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
  const train::Ending ending = trainer.run();
  return tell_ending(ending, trainer.progress().step);
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
