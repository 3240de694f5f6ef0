#include "launch/train/training.h"

#include <unistd.h>

#include <filesystem>

#include "checkpoints/hook.h"
#include "checkpoints/resume.h"
#include "framework/base/clock.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/comm/agreement.h"
#include "framework/io/event_command.h"
#include "framework/io/files.h"
#include "framework/lab/cell_result.h"
#include "framework/train/evaluation_hook.h"
#include "framework/train/lost_hook.h"
#include "framework/train/progress_hook.h"
#include "framework/train/replica_hook.h"
#include "framework/train/run_files_hook.h"
#include "framework/train/time_limit_hook.h"
#include "framework/train/trace_hook.h"
#include "framework/train/watch_hook.h"
#include "launch/common/environment.h"
#include "launch/common/loaded_model.h"
#include "launch/common/run_tokenizer.h"
#include "launch/train/prepared_run.h"
#include "launch/train/run_endings.h"
#include "launch/train/sample_hook.h"
#include "launch/train/stop_signal.h"
#include "launch/train/train_options.h"
#include "models/decoder/telemetry_hook.h"

namespace keel {
namespace {

// What a checkpoint of this run, or of the one that it goes on from, was made with, against what is now.
checkpoints::Comparison compare(const checkpoints::RunState& stored, const FullConfig& now,
                                const std::string& environment) {
  const config::RunConfig then = stored_run(stored.config);
  const bool exact = then.precision == config::Precision::fp32 && now.run.precision == config::Precision::fp32;
  return {.config_changes = changes_since(then, now),
          .environment_changes = environment_changes(stored.environment, environment),
          .resume = resume_word(then),
          .probe_tolerance = exact ? 1e-4 : 2e-2};
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
        lock(claimed ? std::nullopt : lock_of(world, directory_of(run))),
        recovery(world.all(), directory_of(run), run.stability) {
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
      : prepared_(world, std::move(config), !session.rollback), additions_(additions), session_(session) {}

  // None where the run goes back to a checkpoint and begins again.
  std::optional<train::Ending> run();

 private:
  struct Parts;

  void claim_directory();
  bool may_roll_back(int64_t first_step) const;
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

  PreparedRun prepared_;
  RunAdditions additions_;
  Session& session_;
  io::IoThread io_;
};

void TrainingRun::claim_directory() {
  prepared_.world.do_on_rank_0([&] {
    io::create_directories(prepared_.directory);
    if (!session_.lock && !additions_.claimed) session_.lock.emplace(prepared_.directory);
  });
}

bool TrainingRun::may_roll_back(int64_t first_step) const {
  return !prepared_.config.run.checkpoint.weights_only && session_.recovery.may_roll_back(first_step);
}

checkpoints::CheckpointOptions TrainingRun::checkpoint_options(train::RunFilesHook& files) {
  return {.directory = prepared_.directory + "/checkpoints",
          .checkpoint = prepared_.config.run.checkpoint,
          .before_save = [&files] { files.flush(); },
          .config = prepared_.config.text(),
          .environment = prepared_.environment,
          .data_fingerprint = prepared_.data_fingerprint,
          .qk_norm = models::qk_norm_text(prepared_.config.model),
          .compare =
              [this](const checkpoints::RunState& stored) {
                return compare(stored, prepared_.config, prepared_.environment);
              },
          .note = note_in(files)};
}

train::TraceOptions TrainingRun::trace_options() const {
  const auto& c = prepared_.config.run.telemetry.trace;
  if (!c) return {};
  return {
      .directory = prepared_.directory + "/traces", .rank = prepared_.world.rank(), .from = c->from, .steps = c->steps};
}

std::optional<std::string> TrainingRun::find(checkpoints::Resume& resume) {
  const std::string word = resume_word(prepared_.config.run);
  const auto rollback = session_.rollback ? session_.rollback : session_.recovery.pending();
  return rollback ? resume.find(*rollback, word) : resume.find(word);
}

// Of a model made elsewhere: its config must be this one.
void TrainingRun::take_weights(const std::string& path) {
  comm::Communicator& all = prepared_.world.all();
  comm::together(all,
                 [&] { check_same_model(checkpoints::read_contents(io_, path).state.config, path, prepared_.config); });
  checkpoints::read_tensors(io_, path, {prepared_.decoder.parameters()}, models::qk_norm_text(prepared_.config.model),
                            {.agreeing = &all});
  log::info("beginning with the weights of {}", path);
}

void TrainingRun::note(train::RunFilesHook& files, const std::string& kind, const io::Json& fields) {
  files.note(kind, fields);
  if (!session_.command || kind == "saved") return;
  io::Json event = {{"event", kind}, {"run", prepared_.directory}};
  event.update(fields);
  session_.command->tell(event);
}

train::Note TrainingRun::note_in(train::RunFilesHook& files) {
  return [this, &files](const std::string& kind, const io::Json& fields) { note(files, kind, fields); };
}

void TrainingRun::roll_back(const train::TroubledSteps& troubled, train::RunFilesHook& files) {
  const checkpoints::Rollback rollback = session_.recovery.roll_back(troubled);
  session_.rollback = rollback;
  prepared_.world.do_on_rank_0([&] {
    tell_rollback({prepared_.directory, note_in(files)}, rollback, troubled, session_.recovery.fallbacks_taken());
  });
}

// What is queued comes first, so that its last row is on the disk, or all ranks learn that the disk does not answer.
void TrainingRun::finish_files(double limit_seconds) {
  checkpoints::run_within(limit_seconds, io_, "writing the last rows of " + prepared_.directory + "/telemetry.h5",
                          [](io::IoContext&) {});
}

void TrainingRun::tell_ending(const train::Ending& ending, int64_t step) {
  switch (ending.outcome) {
    case train::Outcome::done:
      return log::info("done after {} steps: {}", step, prepared_.directory);
    case train::Outcome::unstable:
      if (prepared_.speaker && !additions_.quiet) log::error("stopped at step {}: {}", step, ending.reason);
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
    : throughput(run.prepared_.throughput()),
      batches(run.prepared_.training_data, run.prepared_.sizes, run.prepared_.config.run.data.document_mask,
              run.prepared_.device),
      trainer(run.prepared_.decoder, run.prepared_.mesh, batches, run.prepared_.order,
              trainer_options(run.prepared_.config.run)),
      files(run.io_, {run.prepared_.directory, run.prepared_.speaker, run.prepared_.config.run.telemetry.tensorboard,
                      throughput, run.session_.rollback.has_value()}),
      stability(run.prepared_.config.run.stability, run.note_in(files),
                [&run](int64_t first_step) { return run.may_roll_back(first_step); }),
      time_limit(run.session_.begin,
                 double(run.prepared_.config.run.train.stop_after.value_or(std::chrono::seconds(0)).count()),
                 run.prepared_.config.run.total_steps(), signal_came, [this] { trainer.request_stop(); }),
      replicas(run.prepared_.decoder.parameters(), run.prepared_.mesh,
               run.prepared_.config.run.stability.check_replicas.value_or(0)),
      progress({run.prepared_.speaker && !run.additions_.quiet, isatty(STDERR_FILENO) == 1,
                run.prepared_.config.run.log.every, run.prepared_.config.run.total_steps(), throughput}),
      watch(run.additions_.watch),
      telemetry(run.prepared_.decoder, run.prepared_.mesh, files),
      state{run.prepared_.world.all(),
            *run.session_.saves,
            run.prepared_.world.io_comm(),
            run.io_,
            run.prepared_.decoder,
            run.prepared_.mesh,
            trainer,
            run.prepared_.config.run.parallel.zero,
            train::make_probe(run.prepared_.training_data, run.prepared_.sizes.length,
                              run.prepared_.config.run.data.document_mask)},
      resume(state, run.checkpoint_options(files)),
      checkpoint(state, run.checkpoint_options(files)),
      trace(run.trace_options()) {
  if (run.prepared_.validation_data) make_evaluation(run);
}

void TrainingRun::Parts::make_evaluation(TrainingRun& run) {
  const config::RunConfig& c = run.prepared_.config.run;
  evaluation.emplace(*run.prepared_.validation_data, run.prepared_.sizes, c.data.document_mask,
                     c.eval.sequences.value_or(0), run.prepared_.device);
  evaluation_hook.emplace(*evaluation, run.prepared_.decoder, run.prepared_.mesh, files,
                          train::EvaluationTimes{c.eval.every.value_or(0), c.total_steps(), c.eval.first,
                                                 [this] { return time_limit.due(); }});
  if (!c.eval.prompts.empty()) {
    tokenizer = tokenizer_of_run(run.prepared_.config, run.prepared_.directory + "/config.yaml");
    samples.emplace(*evaluation_hook,
                    Writer{run.prepared_.decoder, run.prepared_.group, *tokenizer, run.prepared_.device,
                           run.prepared_.sizes.length, run.prepared_.config.run.data.special_ids.eos},
                    SampleHook::Options{c.eval.prompts, c.eval.sample_tokens, uint64_t(c.seed),
                                        run.prepared_.directory + "/samples.jsonl", run.prepared_.speaker});
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
    for (const std::string& change : loaded.since.config_changes) {
      log::info("changed since: {}", change);
      files.note("config_changed", {{"change", change}});
    }
    for (const std::string& change : loaded.since.environment_changes) {
      log::info("changed since, so the bits may be others than those of a run that never stopped: {}", change);
      files.note("environment_changed", {{"change", change}});
    }
  } else {
    prepared_.decoder.initialise(uint64_t(prepared_.config.run.seed));
    if (const auto& from = prepared_.config.run.checkpoint.weights_from) take_weights(*from);
    trainer.weights_changed();
  }
  session_.recovery.went_back();
  session_.recovery.leave_out(trainer.progress().samples);
  if (const std::string in_force = session_.recovery.in_force(); !session_.rollback && !in_force.empty())
    log::info("{}", in_force);
  if (!prepared_.speaker) return;
  io::write_file(prepared_.directory + "/config.yaml", prepared_.config.text());
  io::write_file(prepared_.directory + "/environment.json", prepared_.environment);
}

std::optional<train::Ending> TrainingRun::run() {
  claim_directory();
  prepared_.allocate_model();
  prepared_.announce();
  Parts parts(*this);
  parts.add_hooks();
  start(parts);
  parts.files.note("memory", {{"bytes", prepared_.memory_bytes()}});
  const train::Ending ending = run_loop(parts.trainer, parts.checkpoint);
  // Not in a hook: others' hooks meet all ranks, and a save may be at work yet.
  const double limit_seconds = double(prepared_.config.run.checkpoint.time_limit.count());
  const comm::TimeLimit patience(prepared_.world.all(), limit_seconds + checkpoints::kPatience_seconds);
  prepared_.world.do_on_rank_0([&] { finish_files(limit_seconds); });
  if (ending.outcome == train::Outcome::roll_back) {
    roll_back(parts.stability.troubled(), parts.files);
    return std::nullopt;
  }
  prepared_.world.do_on_rank_0([&] { tell_spikes({prepared_.directory, note_in(parts.files)}); });
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
