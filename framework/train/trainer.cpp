#include "framework/train/trainer.h"

#include "framework/base/clock.h"
#include "framework/train/activity.h"

namespace keel::train {
namespace {

Outcome outcome_of(Action action) {
  switch (action) {
    case Action::stop_saved:
      return Outcome::saved_early;
    case Action::stop_unstable:
      return Outcome::unstable;
    default:
      return Outcome::roll_back;
  }
}

}  // namespace

Trainer::Trainer(nn::Model& model, parallel::Mesh& mesh, StepBatches& batches, const data::SampleOrder& order,
                 const TrainerOptions& options)
    : mesh_(mesh),
      batches_(batches),
      order_(order),
      options_(options),
      step_(model, mesh, batches.sizes(), options),
      micro_batch_([&batches](int64_t micro_step) { return batches.micro_batch(micro_step); }) {
  const size_t global_rows = size_t(batches.sizes().rows() * mesh.data().size());
  indices_.resize(global_rows);
  samples_.resize(global_rows);
}

Ending Trainer::run() {
  Stream::current(step_.stream().device()).synchronize();
  const StreamScope scope(step_.stream());
  for (Hook* hook : hooks_) hook->start(progress_);
  Ending ending;
  const auto ends = [&](const Verdict& verdict) {
    if (verdict.action < Action::stop_saved) return false;
    ending = {outcome_of(verdict.action), verdict.reason, verdict.lost};
    return true;
  };
  bool over = ends(ask_hooks([&](Hook& hook) { return hook.started(progress_); }));
  while (!over && progress_.step < options_.total_steps) {
    attempt(report_);
    const Verdict verdict = judge_attempt();
    const Activity activity(mesh_.world(), report_.step, "evaluating and saving");
    const Verdict after = ask_hooks([&](Hook& hook) { return hook.after_step(report_, verdict, progress_); });
    over = ends(after.action > verdict.action ? after : verdict);
  }
  for (Hook* hook : hooks_) hook->finish(progress_, ending);
  return ending;
}

// A step in trouble is looked at closer, after its verdict, which is the same with and without telemetry.
Verdict Trainer::judge_attempt() {
  Verdict verdict = ask_hooks([&](Hook& hook) { return hook.judge(report_); });
  require(!report_.updated || verdict.action == Action::proceed, "step {} was judged after its update was made: {}",
          report_.step, verdict.reason);
  if (report_.updated)
    verdict = ask_hooks([&](Hook& hook) { return hook.judge_update(report_); });
  else if (verdict.action == Action::proceed)
    verdict = {Action::skip, report_.counted_tokens == 0 ? "no token of the batch counts" : "a value is not finite"};
  if (verdict.action > Action::proceed && options_.telemetry_every > 0) step_.look_closer(report_, micro_batch_);
  return verdict;
}

void Trainer::attempt(StepReport& report) {
  Stopwatch watch;
  report.step = ++progress_.step;
  report.seconds = {};
  report.lr = optim::learning_rate(options_.schedule, report.step);
  for (const Hook* hook : hooks_) report.lr *= hook->lr_factor(report.step);
  draw_batch(report);
  const auto lap = [&](Phase phase) { report.seconds.of(phase) += watch.lap(); };
  const auto before_update = [&] {
    for (Hook* hook : hooks_) hook->before_update();
  };
  lap(Phase::data);
  step_.run(inputs_of(report), micro_batch_, {lap, before_update});
  read_ahead();
  step_.wait();
  step_.read(report);
  progress_.updates = report.updates;
  lap(Phase::update);
}

void Trainer::draw_batch(StepReport& report) {
  const Activity activity(mesh_.world(), report.step, "reading the batch");
  const std::span<const data::SampleId> rows = own_rows(progress_.samples);
  report.samples = samples_;
  report.first_sample = indices_.front();
  report.end_sample = indices_.back() + 1;
  report.tokens = int64_t(indices_.size()) * batches_.sizes().length;
  progress_.tokens_consumed += report.tokens;
  report.tokens_consumed = progress_.tokens_consumed;
  report.counted_tokens = comm::all_reduce_value(mesh_.data(), batches_.fill(rows));
}

// The samples of the step that begins at that position, those of this rank.
std::span<const data::SampleId> Trainer::own_rows(data::SamplePosition& position) {
  position.take(indices_);
  for (size_t i = 0; i < indices_.size(); ++i) samples_[i] = order_(indices_[i]);
  const nn::AxisPosition data = mesh_.data_position();
  return data::slice_of_rank(std::span<const data::SampleId>(samples_), data.index, data.size);
}

TrainingStep::Inputs Trainer::inputs_of(const StepReport& report) const {
  TrainingStep::Inputs inputs{.step = report.step,
                              .updates = progress_.updates,
                              .lr = report.lr,
                              .limits = {},
                              .counted_tokens = report.counted_tokens,
                              .stop_requested = stop_requested_};
  for (const Hook* hook : hooks_) hook->limit(inputs.limits);
  const int64_t every = options_.telemetry_every;
  inputs.telemetry = every > 0 && (report.step == 1 || report.step % every == 0);
  return inputs;
}

// The next step's rows, while the device is busy with this one.
void Trainer::read_ahead() {
  if (step_.stream().device().kind != DeviceKind::cuda || progress_.step >= options_.total_steps) return;
  data::SamplePosition next = progress_.samples;
  batches_.prefetch(own_rows(next));
}

template <class Ask>
Verdict Trainer::ask_hooks(Ask ask) {
  Verdict severest;
  for (Hook* hook : hooks_) {
    Verdict verdict = ask(*hook);
    if (verdict.action > severest.action) severest = std::move(verdict);
  }
  return severest;
}

nlohmann::json Trainer::hook_states() const {
  nlohmann::json states = nlohmann::json::object();
  for (const Hook* hook : hooks_)
    if (!hook->name().empty()) states[hook->name()] = hook->state();
  return states;
}

void Trainer::restore_hooks(const nlohmann::json& states) {
  for (Hook* hook : hooks_)
    if (!hook->name().empty() && states.contains(hook->name())) hook->restore(states.at(hook->name()));
}

}  // namespace keel::train
