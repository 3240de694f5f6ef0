#include "framework/train/training_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "framework/ops/qk_norm/qk_clip.h"
#include "framework/ops/update/update_gate.h"
#include "framework/train/activity.h"

namespace keel::train {

TrainingStep::TrainingStep(nn::Model& model, parallel::Mesh& mesh, const BatchSizes& sizes,
                           const TrainerOptions& options)
    : model_(model),
      mesh_(mesh),
      sizes_(sizes),
      options_(options),
      data_parallel_(model.parameters(), mesh, options.zero),
      optimizer_(model.parameters(), data_parallel_.update_spans(), options.adamw),
      device_(model.parameters().device()),
      stream_(device_),
      numbers_(model.telemetry(), mesh, device_),
      heads_(mesh, model.telemetry().largest_logit.elements(), device_) {
  if (options.rounding_seed)
    model.parameters().round_stochastically(*options.rounding_seed, numbers_.updates.device, numbers_.gate.device);
  if (options.qk_clip_tau > 0)
    qk_clip_factors_ = OwnedTensor(model.telemetry().largest_logit.shape(), DType::f32, device_);
}

void TrainingStep::weights_changed(int64_t updates) {
  *numbers_.updates.host.as<int64_t>() = updates;
  numbers_.upload();
  zero(numbers_.gate.device);  // no update is at hand
  model_.parameters().round_to_compute();
  data_parallel_.publish_weights(false);
  model_.refresh();
}

void TrainingStep::run(const Inputs& inputs, const MicroBatch& batch, const Watch& watch) {
  inputs_ = inputs;
  set_numbers();
  run_on_device(inputs.telemetry ? telemetry_passes_ : passes_, [&] {
    forward_backward(batch, watch.ended);
    reduce();
  });
  watch.ended(Phase::reduction);
  watch.before_update();
  run_on_device(update_, [&] { update(); });
  numbers_.download();
  watch.ended(Phase::update);
}

// Work that reads and writes the same memory in every step; what differs lies there (StepNumbers, StepBatches). NCCL's
// communicators never block their host, and whether their verbs can be recorded has not been tried: with several ranks
// nothing is.
template <class Work>
void TrainingStep::run_on_device(Graph& graph, const Work& work) {
  if (options_.graphs && mesh_.world().size() == 1) return graph.run(device_, work);
  work();
}

void TrainingStep::set_numbers() {
  const double lr = inputs_.lr;
  const double decay = options_.weight_decay * (options_.independent_decay ? lr / options_.schedule.peak : lr);
  StepSums{.tokens = {}, .stops = double(inputs_.stop_requested)}.put(numbers_.sums.host.as<double>());
  inputs_.limits.put(numbers_.limits.host.as<double>());
  std::ranges::copy(optimizer_.rates({lr, decay, inputs_.updates + 1}), numbers_.rates.host.as<float>());
  *numbers_.updates.host.as<int64_t>() = inputs_.updates;
  *numbers_.factor.host.as<float>() = float(1.0 / double(std::max<int64_t>(1, inputs_.counted_tokens)));
  numbers_.upload();
}

// Backward begins where the first gradients are complete.
void TrainingStep::forward_backward(const MicroBatch& batch, const PhaseEnded& ended) {
  const Activity activity(mesh_.world(), inputs_.step, "forward and backward");
  model_.parameters().zero_gradients();
  model_.begin_step();
  nn::StepOptions step;
  step.factor = numbers_.factor.device;
  step.loss = options_.loss;
  step.telemetry = inputs_.telemetry;
  const Tensor sums = StepSums::tokens_in(numbers_.sums.device);
  for (int64_t micro = 0; micro < sizes_.micro_steps; ++micro) {
    step.first_sequence = mesh_.data_position().index * sizes_.rows() + micro * sizes_.micro_sequences;
    const bool last = micro == sizes_.micro_steps - 1;
    bool forward = true;
    const auto complete = [&](size_t first) {
      if (std::exchange(forward, false)) ended(Phase::forward);
      if (last) data_parallel_.gradients_complete(first);
    };
    step.gradients_complete = std::ref(complete);  // without memory of its own
    model_.forward_backward(sums, batch(micro), step);
    ended(Phase::backward);
  }
}

void TrainingStep::reduce() {
  const Activity activity(mesh_.world(), inputs_.step, "reducing gradients");
  copy(numbers_.own_sums.device, numbers_.sums.device);
  data_parallel_.finish_gradients();
  // Over the whole world, so that one decision is made for all: the ranks of a tensor group bring the same sums.
  mesh_.world().all_reduce(numbers_.sums.device);
  zero(numbers_.squares.device);
  data_parallel_.gradient_squares(numbers_.squares.device);
  observe_heads();
  ops::update_gate(numbers_.gate.device, numbers_.values.device,
                   {.sums = StepSums::tokens_in(numbers_.sums.device),
                    .squares = numbers_.squares.device,
                    .largest_logit = numbers_.heads[head_statistic(&nn::ModelTelemetry::largest_logit)].device,
                    .limits = numbers_.limits.device,
                    .copies = mesh_.tensor().size()},
                   options_.clip_norm);
}

void TrainingStep::observe_heads() {
  for (size_t i = 0; i < numbers_.heads.size(); ++i) {
    const HeadStatistic& statistic = kHeadStatistics[i];
    const Tensor& own = model_.telemetry().*statistic.own;
    if (own.defined() && (statistic.every_step || inputs_.telemetry))
      heads_.gather(numbers_.heads[i].device, own, statistic.over_data);
  }
}

// Everything that follows from the weights; where the gate is shut, all of it stays as it is.
void TrainingStep::update() {
  const Activity activity(mesh_.world(), inputs_.step, "updating weights");
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
Tensor TrainingStep::qk_clip_factors() {
  if (options_.qk_clip_tau == 0) return {};
  mesh_.data().all_reduce(qk_clip_factors_, model_.telemetry().largest_logit, comm::Reduction::max);
  ops::qk_clip_factors(qk_clip_factors_, qk_clip_factors_, numbers_.gate.device, options_.qk_clip_tau);
  return qk_clip_factors_;
}

void TrainingStep::wait() const {
  Stream::current(device_).synchronize();
}

void TrainingStep::read(StepReport& report) {
  const auto values = ops::GateValues::of(numbers_.values.host.as<double>());
  report.loss = values.loss;
  report.z_loss = values.z_loss;
  report.gradient_norm = values.gradient_norm;
  const std::span change(numbers_.change.host.as<double>(), size_t(numbers_.change.host.elements()));
  report.update_norm = std::sqrt(std::accumulate(change.begin(), change.end(), 0.0));
  report.layer_update_norms.clear();
  for (double squares : change.subspan(1)) report.layer_update_norms.push_back(std::sqrt(squares));
  report.stop_requested = StepSums::of(numbers_.sums.host.as<double>()).stops > 0;
  report.updated = ops::Gate::of(numbers_.gate.host.as<float>()).made != 0;
  report.updates = inputs_.updates + int64_t(report.updated);
  read_heads(report, Shows::all);
  report.not_finite = report.finite() ? "" : source_of_non_finite();
}

void TrainingStep::read_heads(StepReport& report, Shows shows) const {
  const nn::ModelTelemetry& own = model_.telemetry();
  report.layers = own.largest_logit.size(0);
  report.heads = own.heads;
  report.telemetry = inputs_.telemetry;
  for (size_t i = 0; i < numbers_.heads.size(); ++i) {
    const HeadStatistic& statistic = kHeadStatistics[i];
    if (statistic.every_step && shows == Shows::telemetry) continue;
    std::vector<float>& whole = report.*statistic.whole;
    whole.clear();
    if ((own.*statistic.own).defined() && (statistic.every_step || inputs_.telemetry))
      HeadStatistics::arrange(whole, numbers_.heads[i].host, statistic.of_keys ? own.kv_heads : own.heads);
  }
  const int64_t tokens = mesh_.data().size() * sizes_.rows() * sizes_.length;
  for (float& entropy : report.entropy) entropy /= float(tokens);
  const auto micro_batches = float(sizes_.micro_steps * mesh_.data().size());
  for (std::vector<float>* rms : {&report.q_rms, &report.k_rms})
    for (float& value : *rms) value = std::sqrt(value / micro_batches);
}

void TrainingStep::look_closer(StepReport& report, const MicroBatch& batch) {
  if (std::exchange(inputs_.telemetry, true)) return;  // the step showed them
  forward_backward(batch, [](Phase) {});
  data_parallel_.finish_gradients();
  observe_heads();
  numbers_.download();
  wait();
  read_heads(report, Shows::telemetry);
}

std::string TrainingStep::source_of_non_finite() {
  if (std::isfinite(ops::GateValues::of(numbers_.values.host.as<double>()).loss)) {
    if (const std::string first = data_parallel_.first_gradient_not_finite(); !first.empty()) return "in " + first;
    return "";  // each is finite, but not the square of all (ops/update/update_gate.h)
  }
  const auto own = StepSums::of(numbers_.own_sums.host.as<double>()).tokens;
  const bool here = !std::isfinite(own.loss) || own.finite < own.counted;
  return fmt::format("on rank {}", comm::lowest_rank_where(mesh_.world(), here));
}

}  // namespace keel::train
