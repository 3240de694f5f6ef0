#include "framework/train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

namespace keel::train {
namespace {

// Seconds since the last call.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

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
    : model_(model),
      mesh_(mesh),
      batches_(batches),
      order_(order),
      options_(options),
      data_parallel_(model.parameters(), mesh, options.zero),
      optimizer_(model.parameters(), data_parallel_.update_spans(), options.adamw),
      step_sums_({5}, DType::f64),
      heads_(mesh) {
  const size_t global_rows = size_t(batches.sizes().rows() * mesh.data().size());
  indices_.resize(global_rows);
  samples_.resize(global_rows);
  if (options.qk_clip_tau > 0) qk_clip_factors_ = OwnedTensor(model.telemetry().largest_logit.shape(), DType::f32);
}

void Trainer::weights_changed() {
  model_.parameters().round_to_compute();
  data_parallel_.publish_weights(false);
  model_.refresh();
}

Ending Trainer::run() {
  for (Hook* hook : hooks_) hook->start(progress_);
  Ending ending;
  while (progress_.step < options_.total_steps) {
    attempt(report_);
    const Verdict verdict = ask_hooks([&](Hook& hook) { return hook.before_update(report_); });
    verdict.action == Action::proceed ? update(report_) : look_closer(report_);
    mesh_.world().stand_at(report_.step, "evaluating and saving");
    const Verdict after = ask_hooks([&](Hook& hook) { return hook.after_step(report_, verdict, progress_); });
    const Verdict& last = after.action > verdict.action ? after : verdict;
    if (last.action < Action::roll_back) continue;
    ending = {outcome_of(last.action), last.reason};
    break;
  }
  for (Hook* hook : hooks_) hook->finish(progress_, ending);
  return ending;
}

void Trainer::attempt(StepReport& report) {
  Stopwatch watch;
  report.step = ++progress_.step;
  report.lr = optim::learning_rate(options_.schedule, report.step);
  for (const Hook* hook : hooks_) report.lr *= hook->lr_factor(report.step);
  telemetry_step_ = options_.telemetry_every > 0 && (report.step == 1 || report.step % options_.telemetry_every == 0);
  draw_batch(report);
  report.seconds.data = watch.lap();
  forward_backward(report);
  report.seconds.forward_backward = watch.lap();
  reduce(report);
  report.seconds.reduction = watch.lap();
  report.updates = progress_.updates;
  report.update_norm = report.seconds.update = 0;
}

void Trainer::draw_batch(StepReport& report) {
  mesh_.world().stand_at(report.step, "reading the batch");
  progress_.samples.take(indices_);
  for (size_t i = 0; i < indices_.size(); ++i) samples_[i] = order_(indices_[i]);
  report.first_sample = indices_.front();
  report.end_sample = indices_.back() + 1;
  report.tokens = int64_t(indices_.size()) * batches_.sizes().length;
  progress_.tokens_consumed += report.tokens;
  report.tokens_consumed = progress_.tokens_consumed;
  const nn::AxisPosition data = mesh_.data_position();
  const int64_t counted =
      batches_.fill(data::slice_of_rank(std::span<const data::SampleId>(samples_), data.index, data.size));
  report.counted_tokens = comm::all_reduce_value(mesh_.data(), counted);
}

void Trainer::forward_backward(StepReport& report) {
  mesh_.world().stand_at(report.step, "forward and backward");
  model_.parameters().zero_gradients();
  model_.begin_step();
  nn::StepOptions step{.factor = float(1.0 / double(std::max<int64_t>(1, report.counted_tokens))),
                       .loss = options_.loss,
                       .telemetry = telemetry_step_,
                       .gradients_complete = {}};
  double* sums = step_sums_.tensor.as<double>();
  for (int i = 0; i < 5; ++i) sums[i] = 0;
  for (int64_t micro = 0; micro < batches_.sizes().micro_steps; ++micro) {
    if (micro == batches_.sizes().micro_steps - 1)
      step.gradients_complete = [this](size_t first) { data_parallel_.gradients_complete(first); };
    const ops::CrossEntropySums part = model_.forward_backward(batches_.micro_batch(micro), step);
    sums[0] += part.loss;
    sums[1] += part.z_loss;
    sums[2] += double(part.counted);
    sums[3] += double(part.finite);
  }
  sums[4] = stop_requested_;
}

void Trainer::reduce(StepReport& report) {
  mesh_.world().stand_at(report.step, "reducing gradients");
  const double* own = step_sums_.tensor.as<double>();
  const bool own_fault = !std::isfinite(own[0]) || own[3] < own[2];
  data_parallel_.finish_gradients();
  // Over the whole world, so that one decision is made for all: the ranks of a tensor group bring the same sums.
  mesh_.world().all_reduce(step_sums_.tensor);
  const double* sums = step_sums_.tensor.as<double>();
  const double copies = mesh_.tensor().size(), counted = std::max(1.0, sums[2] / copies);
  report.loss = sums[0] / copies / counted;
  report.z_loss = sums[1] / copies / counted;
  if (sums[3] < sums[2] && std::isfinite(report.loss)) report.loss = std::numeric_limits<double>::quiet_NaN();
  report.stop_requested = sums[4] > 0;
  report.gradient_norm = data_parallel_.gradient_norm();
  report.not_finite.clear();
  if (!std::isfinite(report.loss))
    report.not_finite = fmt::format("on rank {}", comm::lowest_rank_where(mesh_.world(), own_fault));
  else if (!std::isfinite(report.gradient_norm))
    report.not_finite = fmt::format("in {}", data_parallel_.first_gradient_not_finite());
  observe_heads(report);
}

void Trainer::observe_heads(StepReport& report) {
  const nn::ModelTelemetry& own = model_.telemetry();
  report.layers = own.largest_logit.size(0);
  report.heads = own.heads;
  heads_.gather(report.largest_logit, own.largest_logit, own.heads, comm::Reduction::max);
  for (std::vector<float>* values : {&report.entropy, &report.q_rms, &report.k_rms}) values->clear();
  if (!telemetry_step_) return;
  heads_.gather(report.entropy, own.entropy, own.heads, comm::Reduction::sum);
  for (float& entropy : report.entropy) entropy /= float(own.rows * mesh_.data().size());
  heads_.gather(report.q_rms, own.q_rms, own.heads, comm::Reduction::max);
  heads_.gather(report.k_rms, own.k_rms, own.kv_heads, comm::Reduction::max);
}

// A step that is not taken is of interest: its statistics of heads, from a second pass, whose gradients nobody uses.
void Trainer::look_closer(StepReport& report) {
  if (options_.telemetry_every == 0 || telemetry_step_) return;
  telemetry_step_ = true;
  forward_backward(report);
  data_parallel_.finish_gradients();
  observe_heads(report);
}

void Trainer::update(StepReport& report) {
  Stopwatch watch;
  mesh_.world().stand_at(report.step, "updating weights");
  ++progress_.updates;
  optim::Update update{.lr = report.lr, .updates = progress_.updates};
  const bool clip = options_.clip_norm > 0 && report.gradient_norm > options_.clip_norm;
  update.gradient_scale = clip ? options_.clip_norm / report.gradient_norm : 1;
  update.decay = options_.weight_decay * (options_.independent_decay ? report.lr / options_.schedule.peak : report.lr);
  double change = optimizer_.step(update);
  const bool round = model_.clip_weights(qk_clip_factors());
  data_parallel_.publish_weights(round);
  model_.refresh();
  if (data_parallel_.zero()) change = comm::all_reduce_value(mesh_.data(), change);
  report.update_norm = std::sqrt(comm::all_reduce_value(mesh_.tensor(), change));
  report.updates = progress_.updates;
  report.seconds.update = watch.lap();
}

// c = min(1, tau / max|s_h|), the maximum over all ranks and micro-steps of the step (QKNORM.md section 6).
Tensor Trainer::qk_clip_factors() {
  if (options_.qk_clip_tau == 0) return {};
  const Tensor largest = model_.telemetry().largest_logit;
  mesh_.data().all_reduce(largest, comm::Reduction::max);
  for (int64_t i = 0; i < largest.elements(); ++i)
    qk_clip_factors_.tensor.as<float>()[i] = std::min(1.f, float(options_.qk_clip_tau) / largest.as<float>()[i]);
  return qk_clip_factors_.tensor;
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
