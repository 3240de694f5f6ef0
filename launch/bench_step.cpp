#include "launch/bench_step.h"

#include <algorithm>
#include <limits>

#include "framework/base/rng.h"
#include "framework/ops/update_gate.h"

namespace keel {

BenchedStep::BenchedStep(comm::Communicator& all, const FullConfig& config, Device device)
    : config_(config),
      device_(device),
      layout_(layout_for(config, all.size())),
      sizes_(batch_sizes(config, layout_)),
      mesh_(all, int(layout_.tensor)),
      group_(mesh_.tensor()),
      decoder(config.model) {
  decoder.allocate(decoder_layout(config, {device, mesh_, group_}, {sizes_.micro_sequences, sizes_.length}, true));
  decoder.parameters().initialise(1);
  decoder.refresh();
  reducer_.emplace(decoder.parameters(), mesh_, config.run.parallel.zero);
  optimizer_.emplace(decoder.parameters(), reducer_->update_spans(), ops::AdamwOptions{});
  numbers_.emplace(decoder.telemetry(), mesh_, device);
  telemetry_.emplace(decoder, mesh_, nowhere_);
  report_.layers = config.model.layers;
  report_.heads = config.model.attention.heads;
  report_.entropy = report_.largest_logit = std::vector<float>(size_t(report_.layers * report_.heads), 1);
  report_.layer_update_norms.resize(size_t(report_.layers));
  report_.samples.resize(size_t(config.run.batch.sequences));
  *numbers_->factor.host.as<float>() = float(1 / tokens());
  std::fill_n(numbers_->limits.host.as<double>(), 3, std::numeric_limits<double>::infinity());
  const Shape shape = {sizes_.micro_sequences, sizes_.length};
  auto ids = [&](OwnedTensor& there, auto value) {
    there = OwnedTensor(shape, DType::i32, device);
    const HostTensor host(there);
    for (int64_t i = 0; i < shape.elements(); ++i) host.tensor().as<int32_t>()[i] = int32_t(value(i));
    host.put_back();
  };
  const auto vocabulary = double(config.model.vocab.value());
  ids(tokens_, [&](int64_t i) { return uniform(1, uint64_t(i)) * vocabulary; });
  ids(targets_, [&](int64_t i) { return uniform(2, uint64_t(i)) * vocabulary; });
  ids(positions_, [&](int64_t i) { return i % sizes_.length; });
}

double BenchedStep::settled_seconds() const {
  Stream::current(device_).synchronize();
  return now_seconds();
}

StepSeconds BenchedStep::run(bool telemetry) {
  StepSeconds seconds;
  std::ranges::copy(optimizer_->rates({.lr = 3e-4, .decay = 3e-5, .updates = ++updates_}),
                    numbers_->rates.host.as<float>());
  std::fill_n(numbers_->sums.host.as<double>(), 5, 0.0);
  numbers_->upload();
  decoder.parameters().zero_gradients();
  decoder.begin_step();
  for (int64_t micro = 0; micro < sizes_.micro_steps; ++micro)
    forward_backward(seconds, telemetry, micro + 1 == sizes_.micro_steps);
  double begin = now_seconds();
  reducer_->finish_gradients();
  zero(numbers_->squares.device);
  reducer_->gradient_squares(numbers_->squares.device);
  ops::update_gate(numbers_->gate.device, numbers_->values.device,
                   {.sums = numbers_->sums.device.slice(0, 0, 4),
                    .squares = numbers_->squares.device,
                    .largest_logit = decoder.telemetry().largest_logit,
                    .limits = numbers_->limits.device},
                   1);
  double end = settled_seconds();
  seconds.reduction = end - begin;
  optimizer_->step(numbers_->change.device, numbers_->rates.device, numbers_->gate.device);
  reducer_->publish_weights(false);
  decoder.refresh();
  if (telemetry) telemetry_->judge(report_);
  seconds.update = settled_seconds() - end;
  return seconds;
}

// Backward begins where the gradients after the last block are complete.
void BenchedStep::forward_backward(StepSeconds& seconds, bool telemetry, bool last) {
  const double begin = now_seconds();
  double middle = 0;
  nn::StepOptions options{
      .factor = numbers_->factor.device, .loss = {}, .telemetry = telemetry, .gradients_complete = {}};
  options.gradients_complete = [&](size_t first) {
    if (middle == 0) middle = settled_seconds();
    if (last) reducer_->gradients_complete(first);
  };
  decoder.forward_backward(numbers_->sums.device.slice(0, 0, 4), {tokens_, targets_, positions_, {}}, options);
  seconds.forward += middle - begin;
  seconds.backward += settled_seconds() - middle;
}

double BenchedStep::loss() const {
  const HostTensor values(numbers_->values.device);
  return values.tensor().as<double>()[0];
}

int64_t BenchedStep::state_bytes() {
  return int64_t(nn::state_bytes(decoder.parameters(), config_.run.parallel.zero ? layout_.data : 1).total());
}

}  // namespace keel
