#include "launch/bench_step.h"

#include <algorithm>
#include <cmath>

#include "framework/base/rng.h"
#include "framework/tensor/copy.h"

namespace keel {

BenchedStep::BenchedStep(comm::World& world, const FullConfig& config)
    : config_(config),
      layout_(config::check_layout(config.run, world.size())),
      sizes_(batch_sizes(config, layout_)),
      mesh_(world.all(), int(layout_.tensor)),
      group_(mesh_.tensor()),
      decoder(config.model) {
  decoder.allocate(decoder_layout(config, mesh_, group_, {sizes_.micro_sequences, sizes_.length}, true));
  decoder.parameters().initialise(1);
  decoder.refresh();
  reducer_.emplace(decoder.parameters(), mesh_, config.run.parallel.zero);
  optimizer_.emplace(decoder.parameters(), reducer_->update_spans(), ops::AdamwOptions{});
  sums_ = OwnedTensor({4}, DType::f64);
  for (OwnedTensor* number : {&squares_, &change_}) *number = OwnedTensor({1}, DType::f64);
  rates_ = OwnedTensor({3}, DType::f32);
  gate_ = OwnedTensor({2}, DType::f32);
  factor_ = OwnedTensor({1}, DType::f32);
  *factor_.tensor.as<float>() = float(1 / tokens());
  const Shape shape = {sizes_.micro_sequences, sizes_.length};
  for (OwnedTensor* ids : {&tokens_, &targets_, &positions_}) *ids = OwnedTensor(shape, DType::i32);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    tokens_.tensor.as<int32_t>()[i] = int32_t(uniform(1, uint64_t(i)) * double(config.model.vocab.value()));
    targets_.tensor.as<int32_t>()[i] = int32_t(uniform(2, uint64_t(i)) * double(config.model.vocab.value()));
    positions_.tensor.as<int32_t>()[i] = int32_t(i % sizes_.length);
  }
}

StepSeconds BenchedStep::run(bool telemetry) {
  StepSeconds seconds;
  decoder.parameters().zero_gradients();
  decoder.begin_step();
  for (int64_t micro = 0; micro < sizes_.micro_steps; ++micro)
    forward_backward(seconds, telemetry, micro + 1 == sizes_.micro_steps);
  double begin = now_seconds();
  reducer_->finish_gradients();
  zero(squares_);
  reducer_->gradient_squares(squares_);
  seconds.reduction = now_seconds() - begin;
  begin = now_seconds();
  std::ranges::copy(optimizer_->rates({.lr = 3e-4, .decay = 3e-5, .updates = ++updates_}), rates_.tensor.as<float>());
  gate_.tensor.as<float>()[0] = float(std::min(1.0, 1 / std::sqrt(*squares_.tensor.as<double>())));
  gate_.tensor.as<float>()[1] = 1;
  optimizer_->step(change_, rates_, gate_);
  reducer_->publish_weights(false);
  decoder.refresh();
  seconds.update = now_seconds() - begin;
  return seconds;
}

// Backward begins where the gradients after the last block are complete.
void BenchedStep::forward_backward(StepSeconds& seconds, bool telemetry, bool last) {
  const double begin = now_seconds();
  double middle = 0;
  nn::StepOptions options{.factor = factor_, .loss = {}, .telemetry = telemetry, .gradients_complete = {}};
  options.gradients_complete = [&](size_t first) {
    if (middle == 0) middle = now_seconds();
    if (last) reducer_->gradients_complete(first);
  };
  decoder.forward_backward(sums_, {tokens_, targets_, positions_, {}}, options);
  seconds.forward += middle - begin;
  seconds.backward += now_seconds() - middle;
}

int64_t BenchedStep::arena_bytes() {
  int64_t bytes = 0;
  for (nn::ParameterArena& arena : decoder.parameters().arenas())
    bytes += arena.elements * (arena.compute_dtype == DType::f32 ? 8 : 10);
  for (const optim::Span& span : optimizer_->spans()) bytes += 8 * span.size();
  return bytes;
}

}  // namespace keel
