#include "launch/train/training.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "checkpoints/agreement.h"
#include "checkpoints/hook.h"
#include "checkpoints/resume.h"
#include "framework/base/clock.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/text.h"
#include "framework/io/event_command.h"
#include "framework/io/files.h"
#include "framework/lab/cell_result.h"
#include "framework/ops/product_rate.h"
#include "framework/tensor/gpu.h"
#include "framework/train/evaluation_hook.h"
#include "framework/train/lost_hook.h"
#include "framework/train/progress_hook.h"
#include "framework/train/replica_hook.h"
#include "framework/train/run_files_hook.h"
#include "framework/train/time_limit_hook.h"
#include "framework/train/trace_hook.h"
#include "framework/train/watch_hook.h"
#include "launch/common/choose_device.h"
#include "launch/common/device_sheet.h"
#include "launch/common/environment.h"
#include "launch/common/loaded_model.h"
#include "launch/common/run_tokenizer.h"
#include "launch/train/run_endings.h"
#include "launch/train/sample_hook.h"
#include "launch/train/stop_signal.h"
#include "launch/train/train_options.h"
#include "models/decoder/telemetry_hook.h"

namespace keel {
namespace {

// A tensor group exchanges activations several times a layer, so it stays on one host unless the config says otherwise.
// Collective.
config::Layout checked_layout(const FullConfig& config, comm::World& world) {
  const config::Layout layout = layout_for(config, world.size());
  if (layout.tensor == 1 || config.run.parallel.tensor_across_hosts) return layout;
  const auto group = world.all().split(world.rank() / int(layout.tensor), world.rank(), "hosts");
  const std::string first = comm::broadcast_text(*group, world.host());
  const int64_t away = comm::lowest_rank_where(world.all(), first != world.host());
  if (away == world.size()) return layout;
  const int leader = int(away - away % layout.tensor);
  const std::string here = comm::broadcast_text(world.all(), world.host(), leader);
  const std::string there = comm::broadcast_text(world.all(), world.host(), int(away));
  throw config.run.source["parallel"]["tensor"].error(
      "ranks {} on {} and {} on {} are of one tensor group: start as many ranks a host as groups of {} fill, or set "
      "parallel.tensor_across_hosts=true",
      leader, here, away, there, layout.tensor);
}

// On rank 0, of a directory that is there. Collective.
std::optional<io::RunLock> lock_of(comm::World& world, const std::string& directory) {
  std::optional<io::RunLock> lock;
  world.do_on_rank_0([&] {
    if (std::filesystem::exists(directory)) lock.emplace(directory);
  });
  return lock;
}

// What a run keeps when it goes back to a checkpoint.
struct Session {
  // Claimed before recovery.json is read: another run may be about to write it. What is not there is claimed once all
  // else has been found right, so that a wrong config leaves no directory.
  Session(comm::World& world, const config::RunConfig& run, bool claimed)
      : saves(world.another("saves")),
        lock(claimed ? std::nullopt : lock_of(world, recovery_options(run).directory)),
        recovery(world.all(), recovery_options(run)) {
    const config::StabilityConfig& c = run.stability;
    if (c.on_event && world.rank() == 0) command.emplace(*c.on_event, double(c.on_event_limit.count()));
  }

  Clock::time_point begin = Clock::now();
  std::unique_ptr<comm::Communicator> saves;
  std::optional<io::RunLock> lock;  // on rank 0
  checkpoints::Recovery recovery;
  std::optional<checkpoints::Rollback> rollback;  // the last one
  std::optional<io::EventCommand> command;        // on rank 0
};

// From one beginning, or checkpoint, to the end or to a rollback. Members in the order in which they are made.
class TrainingRun {
 public:
  TrainingRun(comm::World& world, FullConfig config, const RunAdditions& additions, Session& session)
      : world_(world),
        config_(std::move(config)),
        additions_(additions),
        session_(session),
        layout_(checked_layout(config_, world)),
        directory_(config_.run.log.directory + "/" + config_.run.name),
        device_(choose_device(config_.run, world)),
        decoder_(config_.model),
        training_data_(open_training_data(config_)),
        order_(training_data_.training_order(uint64_t(config_.run.seed))),
        mesh_(world.all(), int(layout_.tensor)),
        group_(mesh_.tensor()),
        sizes_(batch_sizes(config_, layout_)),
        speaker_(world.rank() == 0) {}

  // None where the run goes back to a checkpoint and begins again.
  std::optional<train::Ending> run();

 private:
  struct Parts;

  void prepare_data();
  void verify_ids(const data::Dataset& data);
  void claim_directory();
  void announce();
  train::Throughput throughput();
  int64_t memory_bytes();
  train::StabilityOptions options_of_stability(train::RunFilesHook& files);
  checkpoints::CheckpointOptions checkpoint_options(train::RunFilesHook& files);
  train::TraceOptions trace_options() const;
  std::optional<std::string> find(checkpoints::Resume& resume);
  void start(Parts& parts);
  void note(train::RunFilesHook& files, const std::string& kind, const io::Json& fields);
  train::Note note_in(train::RunFilesHook& files);
  void roll_back(const train::TroubledSteps& troubled, train::RunFilesHook& files);
  void finish_files(double limit_seconds);
  void tell_ending(const train::Ending& ending, int64_t step);
  void take_weights(const std::string& path);

  comm::World& world_;
  FullConfig config_;
  RunAdditions additions_;
  Session& session_;
  config::Layout layout_;
  std::string directory_, environment_;
  Device device_;
  models::Decoder decoder_;
  data::Dataset training_data_;
  data::SampleOrder order_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;
  train::BatchSizes sizes_;
  bool speaker_;  // rank 0: prints lines and writes the run's files
  std::optional<data::Dataset> validation_data_;
  io::IoThread io_;
};

void TrainingRun::prepare_data() {
  training_data_.check_batch(config_.run.batch.sequences);
  if (config_.run.data.valid) validation_data_.emplace(open_validation_data(config_));
  if (!config_.run.data.verify || session_.rollback) return;
  verify_ids(training_data_);
  if (validation_data_) verify_ids(*validation_data_);
}

// In pieces that the slowest disk reads within the usual time limit, and the ranks meet after each: one that does not
// come back is missed, and however many tokens there are take as long as they take.
void TrainingRun::verify_ids(const data::Dataset& data) {
  constexpr int64_t kPiece_tokens = int64_t(1) << 26;
  int64_t tokens = 0;
  for (const data::TokenFile& file : data.files()) tokens += file.tokens();
  const int pieces = 1 + int(tokens / (world_.size() * kPiece_tokens));
  for (int piece = 0; piece < pieces; ++piece)
    checkpoints::together(world_.all(),
                          [&] { data.verify_ids(world_.rank() * pieces + piece, world_.size() * pieces); });
}

void TrainingRun::claim_directory() {
  environment_ = environment_text(world_, device_, layout_);
  world_.do_on_rank_0([&] {
    io::create_directories(directory_);
    if (!session_.lock && !additions_.claimed) session_.lock.emplace(directory_);
  });
}

void TrainingRun::announce() {
  const models::ModelCost cost = decoder_.cost(sizes_.length);
  log::info("{}: {} parameters ({} in QK-Norm), {} ranks = tensor {} x data {}, {} threads each, {}, on {}",
            config_.run.name, human_count(double(cost.parameters)), human_count(double(cost.qk_norm_parameters)),
            world_.size(), layout_.tensor, layout_.data, world_.threads(), name_of(activation_type(config_)),
            device_.text());
  for (const std::string& line : training_data_.source_lines()) log::info("{}", line);
  log::info("a step: {} sequences of {} tokens, {} micro-steps of {} on each data rank", config_.run.batch.sequences,
            sizes_.length, sizes_.micro_steps, sizes_.micro_sequences);
  int64_t decayed = 0, plain = 0;
  for (const nn::Parameter& parameter : decoder_.parameters().all())
    (parameter.spec.decayed ? decayed : plain) += parameter.spec.shape.elements();
  log::info("all of the config: {}/config.yaml", directory_);
  log::info("weight decay on {} weights, none on the other {}", human_count(double(decayed)),
            human_count(double(plain)));
}

// What MFU is a share of, of this rank: on GPUs the data sheet's rate, as others give it, where that is known; else
// what products reach here, measured once in a process.
double peak_rate(DType type, Device device) {
  if (device.kind == DeviceKind::cuda)
    if (const DeviceSheet* sheet = known_gpu(cuda::describe_gpu(device.index).name)) return sheet->product_rate(type);
  static std::map<std::tuple<DType, DeviceKind, int>, double> measured;
  double& rate = measured[{type, device.kind, device.index}];
  if (rate == 0) rate = ops::measure_product_rate(type, {.seconds = 0.1, .device = device});
  return rate;
}

train::Throughput TrainingRun::throughput() {
  const models::ModelCost cost = decoder_.cost(sizes_.length);
  return {
      .operations_full = cost.operations_full(),
      .operations_causal = cost.operations_causal(),
      .peak_operations_per_second = comm::all_reduce_value(world_.all(), peak_rate(activation_type(config_), device_))};
}

// Of this rank, as planned: its part of the training state, packed weights, activations.
int64_t TrainingRun::memory_bytes() {
  const nn::StateBytes state = nn::state_bytes(decoder_.parameters(), config_.run.parallel.zero ? layout_.data : 1);
  return int64_t(state.total()) + decoder_.packed_bytes() + decoder_.activation_bytes();
}

train::StabilityOptions TrainingRun::options_of_stability(train::RunFilesHook& files) {
  train::StabilityOptions options = stability_options(config_.run.stability);
  options.note = note_in(files);
  options.ladder.may_roll_back = [this](int64_t step) {
    return !config_.run.checkpoint.weights_only && session_.recovery.may_roll_back(step);
  };
  return options;
}

checkpoints::CheckpointOptions TrainingRun::checkpoint_options(train::RunFilesHook& files) {
  const config::CheckpointConfig& c = config_.run.checkpoint;
  return {
      .directory = directory_ + "/checkpoints",
      .every = c.every.value_or(0),
      .retention = {c.keep, c.keep_every.value_or(0)},
      .final = c.final,
      .background = c.background,
      .max_failed = c.max_failed,
      .time_limit_seconds = double(c.time_limit.count()),
      .final_save_limit_seconds = double(c.final_save_limit.count()),
      .weights_only = c.weights_only,
      .parts = c.parts,
      .mpi_hints = {c.mpi_hints.begin(), c.mpi_hints.end()},
      .before_save = [&files] { files.flush(); },
      .config = config_.text(),
      .environment = environment_,
      .data_fingerprint = training_data_.fingerprint_text(uint64_t(config_.run.seed)),
      .qk_norm = models::qk_norm_text(config_.model),
      .probe_tolerance = [this](const std::string& stored) { return probe_tolerance(stored, config_); },
      .compare_configs = [this](const std::string& stored) { return changes_since(stored, config_); },
      .resume_of = stored_resume,
      .compare_environments = [this](const std::string& stored) { return environment_changes(stored, environment_); },
      .note = note_in(files)};
}

train::TraceOptions TrainingRun::trace_options() const {
  const auto& c = config_.run.telemetry.trace;
  if (!c) return {};
  return {.directory = directory_ + "/traces", .rank = world_.rank(), .from = c->from, .steps = c->steps};
}

std::optional<std::string> TrainingRun::find(checkpoints::Resume& resume) {
  const std::string word = resume_word(config_.run);
  const auto rollback = session_.rollback ? session_.rollback : session_.recovery.pending();
  return rollback ? resume.find(*rollback, word) : resume.find(word);
}

// Of a model made elsewhere: its config must be this one.
void TrainingRun::take_weights(const std::string& path) {
  checkpoints::together(world_.all(), [&] {
    check_same_model(checkpoints::read_contents(io_, path).state.config, path, config_);
    checkpoints::read_tensors(io_, path, {decoder_.parameters()}, models::qk_norm_text(config_.model));
  });
  log::info("beginning with the weights of {}", path);
}

void TrainingRun::note(train::RunFilesHook& files, const std::string& kind, const io::Json& fields) {
  files.note(kind, fields);
  if (!session_.command || kind == "saved") return;
  io::Json event = {{"event", kind}, {"run", directory_}};
  event.update(fields);
  session_.command->tell(event);
}

train::Note TrainingRun::note_in(train::RunFilesHook& files) {
  return [this, &files](const std::string& kind, const io::Json& fields) { note(files, kind, fields); };
}

void TrainingRun::roll_back(const train::TroubledSteps& troubled, train::RunFilesHook& files) {
  const checkpoints::Rollback rollback = session_.recovery.roll_back(troubled);
  session_.rollback = rollback;
  world_.do_on_rank_0([&] {
    tell_rollback({directory_, note_in(files)}, rollback, troubled, session_.recovery.fallbacks_taken());
  });
}

// What is queued comes first, so that its last row is on the disk, or all ranks learn that the disk does not answer.
void TrainingRun::finish_files(double limit_seconds) {
  checkpoints::run_within(limit_seconds, io_, "writing the last rows of " + directory_ + "/telemetry.h5",
                          [](io::IoContext&) {});
}

void TrainingRun::tell_ending(const train::Ending& ending, int64_t step) {
  switch (ending.outcome) {
    case train::Outcome::done:
      return log::info("done after {} steps: {}", step, directory_);
    case train::Outcome::unstable:
      if (speaker_ && !additions_.quiet) log::error("stopped at step {}: {}", step, ending.reason);
      return;
    default:
      log::info("{}; saved at step {}, and the same command goes on", ending.reason, step);
  }
}

// An error must not wait for a save whose ranks have gone.
train::Ending run_loop(train::Trainer& trainer, checkpoints::CheckpointHook& checkpoint) {
  try {
    return trainer.run();
  } catch (const Error& error) {
    checkpoint.leave(error);
    throw;
  } catch (const std::exception& error) {
    checkpoint.leave(Error(ErrorKind::internal, error.what()));
    throw;
  }
}

// The loop and its hooks, in the order in which they are made.
struct TrainingRun::Parts {
  explicit Parts(TrainingRun& run);
  void make_evaluation(TrainingRun& run);
  void add_hooks();

  train::Throughput throughput;
  train::StepBatches batches;
  train::Trainer trainer;
  train::RunFilesHook files;
  train::StabilityHook stability;
  train::TimeLimitHook time_limit;
  train::ReplicaHook replicas;
  train::ProgressHook progress;
  train::WatchHook watch;
  // Where there is held-out data: what is told of it, written on from prompts, and ended by.
  std::optional<train::Evaluation> evaluation;
  std::optional<train::EvaluationHook> evaluation_hook;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::optional<SampleHook> samples;
  std::optional<train::LostHook> lost;
  models::TelemetryHook telemetry;
  checkpoints::CheckpointParts state;
  checkpoints::Resume resume;
  checkpoints::CheckpointHook checkpoint;
  train::TraceHook trace;
};

TrainingRun::Parts::Parts(TrainingRun& run)
    : throughput(run.throughput()),
      batches(run.training_data_, run.sizes_, run.config_.run.data.document_mask, run.device_),
      trainer(run.decoder_, run.mesh_, batches, run.order_, trainer_options(run.config_.run)),
      files(run.io_, {run.directory_, run.speaker_, run.config_.run.telemetry.tensorboard, throughput,
                      run.session_.rollback.has_value()}),
      stability(run.options_of_stability(files)),
      time_limit(run.session_.begin, double(run.config_.run.train.stop_after.value_or(std::chrono::seconds(0)).count()),
                 run.config_.run.total_steps(), signal_came, [this] { trainer.request_stop(); }),
      replicas(run.decoder_.parameters(), run.mesh_, run.config_.run.stability.check_replicas.value_or(0)),
      progress({run.speaker_ && !run.additions_.quiet, isatty(STDERR_FILENO) == 1, run.config_.run.log.every,
                run.config_.run.total_steps(), throughput}),
      watch(run.additions_.watch),
      telemetry(run.decoder_, run.mesh_, files),
      state{run.world_.all(),
            *run.session_.saves,
            run.world_.io_comm(),
            run.io_,
            run.decoder_,
            run.mesh_,
            trainer,
            run.config_.run.parallel.zero,
            train::make_probe(run.training_data_, run.sizes_.length, run.config_.run.data.document_mask)},
      resume(state, run.checkpoint_options(files)),
      checkpoint(state, run.checkpoint_options(files)),
      trace(run.trace_options()) {
  if (run.validation_data_) make_evaluation(run);
}

void TrainingRun::Parts::make_evaluation(TrainingRun& run) {
  const config::RunConfig& c = run.config_.run;
  evaluation.emplace(*run.validation_data_, run.sizes_, c.data.document_mask, c.eval.sequences.value_or(0),
                     run.device_);
  evaluation_hook.emplace(*evaluation, run.decoder_, run.mesh_, files,
                          train::EvaluationTimes{c.eval.every.value_or(0), c.total_steps(), c.eval.first,
                                                 [this] { return time_limit.due(); }});
  if (!c.eval.prompts.empty()) {
    tokenizer = tokenizer_of_run(run.config_, run.directory_ + "/config.yaml");
    samples.emplace(*evaluation_hook,
                    Writer{run.decoder_, run.group_, *tokenizer, run.device_, run.sizes_.length,
                           run.config_.run.data.special_ids.eos},
                    SampleHook::Options{c.eval.prompts, c.eval.sample_tokens, uint64_t(c.seed),
                                        run.directory_ + "/samples.jsonl", run.speaker_});
  }
  if (run.additions_.lost_above)
    lost.emplace(*evaluation_hook, train::LostOptions{.largest_logit = lab::kLostLogit,
                                                      .bigram_loss = *run.additions_.lost_above,
                                                      .total_steps = c.total_steps()});
}

// In the order in which they are asked: verdicts before what tells of them, the evaluation before those that look at
// its loss, and the save where everything of the step has been said.
void TrainingRun::Parts::add_hooks() {
  for (train::Hook* hook :
       std::initializer_list<train::Hook*>{&stability, &replicas, &time_limit, &files, &progress, &watch})
    trainer.add(*hook);
  if (evaluation_hook) trainer.add(*evaluation_hook);
  if (samples) trainer.add(*samples);
  if (lost) trainer.add(*lost);
  trainer.add(checkpoint);
  trainer.add(telemetry);
  trainer.add(trace);
}

// Weights and progress: from a checkpoint, or from the seed.
void TrainingRun::start(Parts& parts) {
  train::Trainer& trainer = parts.trainer;
  train::RunFilesHook& files = parts.files;
  if (const auto found = find(parts.resume)) {
    const checkpoints::Resume::Loaded loaded = parts.resume.load(*found);
    if (loaded.own) parts.checkpoint.saved_already(trainer.progress().step);
    log::info("going on from {} at step {}", *found, trainer.progress().step);
    for (const std::string& change : loaded.config_changes) {
      log::info("changed since: {}", change);
      files.note("config_changed", {{"change", change}});
    }
    for (const std::string& change : loaded.environment_changes) {
      log::info("changed since, so the bits may be others than those of a run that never stopped: {}", change);
      files.note("environment_changed", {{"change", change}});
    }
  } else {
    decoder_.initialise(uint64_t(config_.run.seed));
    if (const auto& from = config_.run.checkpoint.weights_from) take_weights(*from);
    trainer.weights_changed();
  }
  session_.recovery.went_back();
  session_.recovery.leave_out(trainer.progress().samples);
  if (const std::string in_force = session_.recovery.in_force(); !session_.rollback && !in_force.empty())
    log::info("{}", in_force);
  if (!speaker_) return;
  io::write_file(directory_ + "/config.yaml", config_.text());
  io::write_file(directory_ + "/environment.json", environment_);
}

std::optional<train::Ending> TrainingRun::run() {
  prepare_data();
  claim_directory();
  decoder_.allocate(decoder_layout(config_, {device_, mesh_, group_}, sizes_.shape(), true));
  announce();
  Parts parts(*this);
  parts.add_hooks();
  start(parts);
  parts.files.note("memory", {{"bytes", memory_bytes()}});
  const train::Ending ending = run_loop(parts.trainer, parts.checkpoint);
  // Not in a hook: others' hooks meet all ranks, and a save may be at work yet.
  const double limit_seconds = double(config_.run.checkpoint.time_limit.count());
  const comm::TimeLimit patience(world_.all(), limit_seconds + checkpoints::kPatience_seconds);
  world_.do_on_rank_0([&] { finish_files(limit_seconds); });
  if (ending.outcome == train::Outcome::roll_back) {
    roll_back(parts.stability.troubled(), parts.files);
    return std::nullopt;
  }
  world_.do_on_rank_0([&] { tell_spikes({directory_, note_in(parts.files)}); });
  parts.files.note("memory", {{"peak_resident_bytes", peak_resident_bytes()}});
  tell_ending(ending, parts.trainer.progress().step);
  return ending;
}

}  // namespace

train::Ending run_training(comm::World& world, FullConfig config, const RunAdditions& additions) {
  const double usual_seconds = world.all().set_time_limit(double(config.run.parallel.time_limit.count()));
  Session session(world, config.run, additions.claimed);
  std::optional<train::Ending> ending;
  while (!ending)
    ending = TrainingRun(world, with_fallback(config, session.recovery.fallbacks_taken()), additions, session).run();
  world.all().set_time_limit(usual_seconds);
  return *ending;
}

int exit_code_of(train::Outcome outcome) {
  return outcome == train::Outcome::done ? 0 : outcome == train::Outcome::unstable ? 3 : 4;
}

}  // namespace keel
