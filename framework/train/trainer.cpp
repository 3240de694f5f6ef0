#include "framework/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "framework/base/trace.h"
#include "framework/ops/qk_clip.h"
#include "framework/ops/update_gate.h"

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

// What this rank is at, until the scope ends: for the lines of a wait that takes too long, and for traces.
class Phase {
 public:
  Phase(comm::Communicator& world, int64_t step, const char* name) : span_(name, step) { world.stand_at(step, name); }

 private:
  Span span_;
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
      device_(model.parameters().device()),
      stream_(device_),
      numbers_(model.telemetry(), mesh, device_),
      heads_(mesh, model.telemetry().largest_logit.elements(), device_) {
  const size_t global_rows = size_t(batches.sizes().rows() * mesh.data().size());
  indices_.resize(global_rows);
  samples_.resize(global_rows);
  if (options.rounding_seed)
    model.parameters().round_stochastically(*options.rounding_seed, numbers_.updates.device, numbers_.gate.device);
  if (options.qk_clip_tau > 0)
    qk_clip_factors_ = OwnedTensor(model.telemetry().largest_logit.shape(), DType::f32, device_);
}

void Trainer::weights_changed() {
  *numbers_.updates.host.as<int64_t>() = progress_.updates;
  numbers_.upload();
  zero(numbers_.gate.device);  // no update is at hand
  model_.parameters().round_to_compute();
  data_parallel_.publish_weights(false);
  model_.refresh();
}

Ending Trainer::run() {
  Stream::current(device_).synchronize();
  const StreamScope scope(stream_);
  for (Hook* hook : hooks_) hook->start(progress_);
  Ending ending;
  while (progress_.step < options_.total_steps) {
    attempt(report_);
    Verdict verdict = ask_hooks([&](Hook& hook) { return hook.judge(report_); });
    require(!report_.updated || verdict.action == Action::proceed, "step {} was judged after its update was made: {}",
            report_.step, verdict.reason);
    if (!report_.updated && verdict.action == Action::proceed)
      verdict = {Action::skip, report_.counted_tokens == 0 ? "no token of the batch counts" : "a value is not finite"};
    if (!report_.updated) look_closer();
    if (report_.updated) verdict = ask_hooks([&](Hook& hook) { return hook.judge_update(report_); });
    const Phase phase(mesh_.world(), report_.step, "evaluating and saving");
    const Verdict after = ask_hooks([&](Hook& hook) { return hook.after_step(report_, verdict, progress_); });
    const Verdict& last = after.action > verdict.action ? after : verdict;
    if (last.action < Action::stop_saved) continue;
    ending = {outcome_of(last.action), last.reason, last.lost};
    break;
  }
  for (Hook* hook : hooks_) hook->finish(progress_, ending);
  return ending;
}

void Trainer::attempt(StepReport& report) {
  Stopwatch watch;
  report.step = ++progress_.step;
  report.seconds = {};
  report.lr = optim::learning_rate(options_.schedule, report.step);
  for (const Hook* hook : hooks_) report.lr *= hook->lr_factor(report.step);
  telemetry_step_ = options_.telemetry_every > 0 && (report.step == 1 || report.step % options_.telemetry_every == 0);
  draw_batch(report);
  set_numbers(report);
  report.seconds.data = watch.lap();
  run_on_device(telemetry_step_ ? telemetry_passes_ : passes_, [&] {
    forward_backward();
    report.seconds.forward_backward = watch.lap();
    reduce();
  });
  report.seconds.reduction = watch.lap();
  run_on_device(update_, [&] { update(); });
  wait();
  read_numbers(report);
  report.seconds.update = watch.lap();
}

// Work that reads and writes the same memory in every step; what differs lies there (StepNumbers, StepBatches). NCCL's
// communicators never block their host, and whether their verbs can be recorded has not been tried: with several ranks
// nothing is.
template <class Work>
void Trainer::run_on_device(Graph& graph, const Work& work) {
  if (options_.graphs && mesh_.world().size() == 1) return graph.run(device_, work);
  work();
}

void Trainer::draw_batch(StepReport& report) {
  const Phase phase(mesh_.world(), report.step, "reading the batch");
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

void Trainer::set_numbers(const StepReport& report) {
  StepLimits limits;
  for (const Hook* hook : hooks_) hook->limit(limits);
  const double lr = report.lr;
  const double decay = options_.weight_decay * (options_.independent_decay ? lr / options_.schedule.peak : lr);
  const double sums[5] = {0, 0, 0, 0, double(stop_requested_)};
  const double limit[3] = {limits.loss, limits.gradient_norm, limits.largest_logit};
  std::copy_n(sums, 5, numbers_.sums.host.as<double>());
  std::copy_n(limit, 3, numbers_.limits.host.as<double>());
  std::ranges::copy(optimizer_.rates({lr, decay, progress_.updates + 1}), numbers_.rates.host.as<float>());
  *numbers_.updates.host.as<int64_t>() = progress_.updates;
  *numbers_.factor.host.as<float>() = float(1.0 / double(std::max<int64_t>(1, report.counted_tokens)));
  numbers_.upload();
}

void Trainer::forward_backward() {
  const Phase phase(mesh_.world(), progress_.step, "forward and backward");
  model_.parameters().zero_gradients();
  model_.begin_step();
  nn::StepOptions step;
  step.factor = numbers_.factor.device;
  step.loss = options_.loss;
  step.telemetry = telemetry_step_;
  const Tensor sums = numbers_.sums.device.slice(0, 0, 4);
  for (int64_t micro = 0; micro < batches_.sizes().micro_steps; ++micro) {
    step.first_sequence =
        mesh_.data_position().index * batches_.sizes().rows() + micro * batches_.sizes().micro_sequences;
    if (micro == batches_.sizes().micro_steps - 1)
      step.gradients_complete = [this](size_t first) { data_parallel_.gradients_complete(first); };
    model_.forward_backward(sums, batches_.micro_batch(micro), step);
  }
}

void Trainer::reduce() {
  const Phase phase(mesh_.world(), progress_.step, "reducing gradients");
  copy(numbers_.own_sums.device, numbers_.sums.device);
  data_parallel_.finish_gradients();
  // Over the whole world, so that one decision is made for all: the ranks of a tensor group bring the same sums.
  mesh_.world().all_reduce(numbers_.sums.device);
  zero(numbers_.squares.device);
  data_parallel_.gradient_squares(numbers_.squares.device);
  observe_heads();
  ops::update_gate(numbers_.gate.device, numbers_.values.device,
                   {.sums = numbers_.sums.device.slice(0, 0, 4),
                    .squares = numbers_.squares.device,
                    .largest_logit = numbers_.largest_logit.device,
                    .limits = numbers_.limits.device,
                    .copies = mesh_.tensor().size()},
                   options_.clip_norm);
}

void Trainer::observe_heads() {
  const nn::ModelTelemetry& own = model_.telemetry();
  heads_.gather(numbers_.largest_logit.device, own.largest_logit, comm::Reduction::max);
  const bool bounded = own.logit_bound.defined();
  if (bounded) heads_.gather(numbers_.logit_bound.device, own.logit_bound, comm::Reduction::max);
  if (!telemetry_step_) return;
  if (bounded) {
    heads_.gather(numbers_.q_gain.device, own.q_gain, comm::Reduction::max);
    heads_.gather(numbers_.k_gain.device, own.k_gain, comm::Reduction::max);
    heads_.gather(numbers_.logit_scale.device, own.logit_scale, comm::Reduction::max);
  }
  heads_.gather(numbers_.entropy.device, own.entropy, comm::Reduction::sum);
  heads_.gather(numbers_.q_squares.device, own.q_squares, comm::Reduction::sum);
  heads_.gather(numbers_.k_squares.device, own.k_squares, comm::Reduction::sum);
}

// Everything that follows from the weights; where the gate is shut, all of it stays as it is.
void Trainer::update() {
  const Phase phase(mesh_.world(), progress_.step, "updating weights");
  const Tensor change = numbers_.change.device;
  zero(change);
  optimizer_.step(change, numbers_.rates.device, numbers_.gate.device);
  const bool clipped = model_.clip_weights(qk_clip_factors());
  data_parallel_.publish_weights(clipped || model_.parameters().rounds_stochastically());
  model_.refresh();
  if (!data_parallel_.zero() && mesh_.data().rank() != 0) zero(change);  // all data ranks have made the same one
  mesh_.world().all_reduce(change);
}

// c = min(1, tau / max|s_h|), the maximum over all ranks and micro-steps of the step (QKNORM.md section 6).
Tensor Trainer::qk_clip_factors() {
  if (options_.qk_clip_tau == 0) return {};
  mesh_.data().all_reduce(qk_clip_factors_, model_.telemetry().largest_logit, comm::Reduction::max);
  ops::qk_clip_factors(qk_clip_factors_, qk_clip_factors_, numbers_.gate.device, options_.qk_clip_tau);
  return qk_clip_factors_;
}

// Until the device has done the step; meanwhile the next one's rows are read.
void Trainer::wait() {
  numbers_.download();
  if (device_.kind != DeviceKind::cuda) return;
  if (progress_.step < options_.total_steps) {
    data::SamplePosition next = progress_.samples;
    batches_.prefetch(own_rows(next));
  }
  Stream::current(device_).synchronize();
}

void Trainer::read_numbers(StepReport& report) {
  const double* values = numbers_.values.host.as<double>();
  report.loss = values[0];
  report.z_loss = values[1];
  report.gradient_norm = values[2];
  const std::span change(numbers_.change.host.as<double>(), size_t(numbers_.change.host.elements()));
  report.update_norm = std::sqrt(std::accumulate(change.begin(), change.end(), 0.0));
  report.layer_update_norms.clear();
  for (double squares : change.subspan(1)) report.layer_update_norms.push_back(std::sqrt(squares));
  report.stop_requested = numbers_.sums.host.as<double>()[4] > 0;
  report.updated = numbers_.gate.host.as<float>()[1] != 0;
  if (report.updated) ++progress_.updates;
  report.updates = progress_.updates;
  read_heads(report);
  report.not_finite = std::isfinite(report.loss) && std::isfinite(report.gradient_norm) ? "" : source_of_non_finite();
}

void Trainer::read_heads(StepReport& report) const {
  const nn::ModelTelemetry& own = model_.telemetry();
  report.layers = own.largest_logit.size(0);
  report.heads = own.heads;
  HeadStatistics::arrange(report.largest_logit, numbers_.largest_logit.host, own.heads);
  for (std::vector<float>* values : {&report.logit_bound, &report.entropy, &report.q_rms, &report.k_rms, &report.q_gain,
                                     &report.k_gain, &report.logit_scale})
    values->clear();
  const bool bounded = own.logit_bound.defined();
  if (bounded) HeadStatistics::arrange(report.logit_bound, numbers_.logit_bound.host, own.heads);
  if (!telemetry_step_) return;
  if (bounded) {
    HeadStatistics::arrange(report.q_gain, numbers_.q_gain.host, own.heads);
    HeadStatistics::arrange(report.k_gain, numbers_.k_gain.host, own.kv_heads);
    HeadStatistics::arrange(report.logit_scale, numbers_.logit_scale.host, own.heads);
  }
  HeadStatistics::arrange(report.entropy, numbers_.entropy.host, own.heads);
  for (float& entropy : report.entropy) entropy /= float(report.tokens);
  HeadStatistics::arrange(report.q_rms, numbers_.q_squares.host, own.heads);
  HeadStatistics::arrange(report.k_rms, numbers_.k_squares.host, own.kv_heads);
  const auto micro_batches = float(batches_.sizes().micro_steps * mesh_.data().size());
  for (std::vector<float>* rms : {&report.q_rms, &report.k_rms})
    for (float& value : *rms) value = std::sqrt(value / micro_batches);
}

// A step that was not taken is of interest: its statistics of heads, from a second pass, whose gradients nobody uses.
void Trainer::look_closer() {
  if (options_.telemetry_every == 0 || telemetry_step_) return;
  telemetry_step_ = true;
  forward_backward();
  data_parallel_.finish_gradients();
  observe_heads();
  numbers_.download();
  if (device_.kind == DeviceKind::cuda) Stream::current(device_).synchronize();
  read_heads(report_);
}

std::string Trainer::source_of_non_finite() {
  if (std::isfinite(numbers_.values.host.as<double>()[0]))
    return fmt::format("in {}", data_parallel_.first_gradient_not_finite());
  const double* own = numbers_.own_sums.host.as<double>();
  return fmt::format("on rank {}", comm::lowest_rank_where(mesh_.world(), !std::isfinite(own[0]) || own[3] < own[2]));
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
