#include "launch/bench/bench_step.h"

#include "framework/base/clock.h"
#include "framework/base/rng.h"
#include "launch/train/train_options.h"

namespace keel {
namespace {

train::TrainerOptions options_of(const FullConfig& config, bool graphs) {
  train::TrainerOptions options = trainer_options(config.run);
  options.graphs = graphs && options.graphs;
  return options;
}

}  // namespace

BenchedStep::BenchedStep(comm::Communicator& all, const FullConfig& config, Device device, bool graphs)
    : config_(config),
      device_(device),
      graphs_(graphs),
      layout_(layout_for(config, all.size())),
      sizes_(batch_sizes(config, layout_)),
      mesh_(all, int(layout_.tensor)),
      group_(mesh_.tensor()),
      decoder(config.model) {
  decoder.allocate(decoder_layout(config, {device, mesh_, group_}, sizes_.shape(), true));
  decoder.parameters().initialise(1);
  step_.emplace(decoder, mesh_, sizes_, options_of(config, graphs));
  step_->weights_changed(0);
  telemetry_.emplace(decoder, mesh_, nowhere_);
  report_.samples.resize(size_t(config.run.batch.sequences));
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
  Stream::current(device).synchronize();
}

train::PhaseSeconds BenchedStep::run(bool telemetry) {
  const StreamScope scope(step_->stream());
  train::PhaseSeconds seconds;
  Stopwatch watch;
  const auto lap = [&](train::Phase phase) {
    if (graphs_ && phase != train::Phase::update) return;  // nothing is waited for while work is recorded
    step_->wait();
    seconds.of(phase) += watch.lap();
  };
  step_->run(
      {.step = ++report_.step,
       .updates = report_.updates,
       .lr = config_.run.optimizer.lr,
       .limits = {},
       .counted_tokens = int64_t(tokens()),
       .telemetry = telemetry},
      [this](int64_t) {
        return nn::TokenBatch{tokens_, targets_, positions_, {}};
      },
      {lap});
  step_->read(report_);
  if (telemetry) {
    Stopwatch hook;
    telemetry_->judge(report_);
    hook_seconds_ = hook.lap();
  }
  lap(train::Phase::update);
  return seconds;
}

int64_t BenchedStep::planned_bytes() const {
  return decoder.planned_bytes(config_.run.parallel.zero ? layout_.data : 1);
}

}  // namespace keel
