#include "launch/convert/retrofit.h"

#include <algorithm>
#include <cmath>

#include "checkpoints/resume.h"
#include "framework/base/log.h"
#include "framework/train/evaluation.h"
#include "launch/convert/loaded_state.h"
#include "models/decoder/calibration.h"

namespace keel {
namespace {

void check_change(const std::string& change) {
  if (change == "qk_norm=rms") return;
  if (change == "qk_norm=none")
    throw input_error(
        "QK-Norm cannot be taken out: it divides every row of q and k by that row's own length, which no weights can "
        "do (keel convert --fold takes a learned scale into the gains)");
  throw input_error("--retrofit {}: qk_norm=rms is known", change);
}

FullConfig retrofitted_config(const FullConfig& config, const std::string& path) {
  if (config.model.attention.qk_norm.kind != ops::QkNormKind::none)
    throw input_error("{} has QK-Norm already: {}", path, models::qk_norm_text(config.model));
  models::DecoderConfig model = config.model;
  model.attention.qk_norm = {};           // rms, scope head, a gain per head
  model.attention.logit_scale.kind = {};  // per head where there is a norm
  return with_model(config, model, path);
}

// One pass over text: layer by layer what attention was given. The ranks of the data axis take turns.
void observe(LoadedState& state, const data::Dataset& text, int64_t sequences,
             std::vector<models::QkCalibration>& layers) {
  const int64_t length = state.config.run.data.sequence_length;
  train::StepBatches batches(text, {.micro_sequences = 1, .length = length, .micro_steps = 1},
                             state.config.run.data.document_mask);
  const data::ValidationOrder order = text.validation_order();
  // Spread over the text: neighbours say the same.
  const int64_t count = std::min(sequences, order.samples());
  for (int64_t i = state.mesh.data().rank(); i < count; i += state.mesh.data().size()) {
    const data::SampleId sample = order(i * order.samples() / count);
    batches.fill({&sample, 1});
    const nn::TokenBatch batch = batches.micro_batch(0);
    state.decoder.forward(batch);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const nn::Attention::Saved& saved = state.decoder.block_saved(int64_t(layer)).attention;
      layers[layer].add(saved.q, saved.k, batch.first_key, {1, length}, i * length);
    }
  }
}

// w of the logit scales g0 w; empty where they are fixed.
std::span<const float> learned_scale(LoadedState& state, int64_t layer) {
  if (state.config.model.scale_kind(layer) == nn::LogitScaleKind::fixed) return {};
  const Tensor w = state.parameter(layer, "attention.logit_scale.weight").master;
  return {w.as<float>(), size_t(w.elements())};
}

std::vector<models::CalibratedGains> calibrate(LoadedState& state, const data::Dataset& text, int64_t sequences) {
  constexpr int kPasses = 8;       // Newton's method doubles the digits at each
  constexpr int64_t kRows = 4096;  // of each head that a step looks at: 64 gains need no more
  const int64_t rows = std::min(sequences, text.validation_order().samples()) * state.config.run.data.sequence_length;
  std::vector<models::QkCalibration> layers;
  for (int64_t layer = 0; layer < state.config.model.layers; ++layer) {
    const nn::Attention& attention = state.decoder.blocks()[size_t(layer)]->attention;
    layers.emplace_back(state.config.model, layer,
                        models::CalibrationOptions{.heads = attention.heads(),
                                                   .kv_heads = attention.kv_heads(),
                                                   .scale = learned_scale(state, layer),
                                                   .every = (rows + kRows - 1) / kRows});
  }
  for (int pass = 0; pass <= kPasses; ++pass) {
    observe(state, text, sequences, layers);
    for (models::QkCalibration& layer : layers) layer.improve(state.mesh.data());
  }
  log::info("calibrated on {} of {} rows of each head", layers[0].rows_of_a_pass(), rows);
  std::vector<models::CalibratedGains> gains;
  for (const models::QkCalibration& layer : layers) gains.push_back(layer.gains());
  return gains;
}

void set(nn::Parameter& parameter, const std::vector<float>& values) {
  require(parameter.local.elements() == int64_t(values.size()), "{}: {} values", parameter.spec.name, values.size());
  std::copy(values.begin(), values.end(), parameter.master.as<float>());
}

// q and k keep their second moments: calibrated gains leave the size of their gradients. Their first ones point along
// the rows' lengths too, which no longer matter.
void forget_directions(LoadedState& state, int64_t layer) {
  for (const char* name : {"attention.q.weight", "attention.k.weight"}) {
    const Tensor moment = state.moment(state.parameter(layer, name), checkpoints::TensorKind::moment1);
    std::fill_n(moment.as<float>(), moment.elements(), 0.f);
  }
}

// What these have seen is the other model: its losses and norms are no measure of this one's.
void forget_detectors(checkpoints::RunState& run, const std::string& path) {
  nlohmann::json hooks = checkpoints::hooks_of(run, path);
  for (const char* name : {"stability", "lost"}) hooks.erase(name);
  run.hooks = hooks.dump();
}

double loss_of(LoadedState& state, const data::Dataset& text) {
  const int64_t length = state.config.run.data.sequence_length;
  train::Evaluation evaluation(text, {.micro_sequences = 1, .length = length, .micro_steps = 1},
                               state.config.run.data.document_mask, 256);
  return evaluation.run(state.decoder, state.mesh)->loss;
}

}  // namespace

void retrofit(const RetrofitOptions& options, comm::World& world) {
  check_change(options.change);
  const std::vector<std::string> overrides = {"precision=fp32", "model.recompute=none"};
  const FullConfig before = stored_config(world, options.from, overrides);
  const data::Dataset text = open_validation_data(before, options.data);
  const nn::BatchShape batch{1, before.run.data.sequence_length};
  LoadedState source(world, before, options.tensor, batch, true);
  source.read(options.from);
  LoadedState target(world, retrofitted_config(before, options.to), options.tensor, batch, false);
  target.decoder.parameters().initialise(uint64_t(before.run.seed));
  target.take(source);
  // What the file says is the run's own config, not this start's.
  target.run.config = retrofitted_config(stored_config(world, options.from), options.to).text();
  forget_detectors(target.run, options.from);
  const double loss_before = loss_of(source, text);
  if (!std::isfinite(loss_before))
    throw input_error("{}: its held-out loss is {}: its weights have diverged; take an earlier checkpoint",
                      options.from, loss_before);
  double divergence = 0;
  if (options.calibrate) {
    const auto gains = calibrate(source, text, options.sequences);
    for (int64_t layer = 0; layer < before.model.layers; ++layer) {
      set(target.parameter(layer, "attention.q_norm.weight"), gains[size_t(layer)].q);
      set(target.parameter(layer, "attention.k_norm.weight"), gains[size_t(layer)].k);
      set(target.parameter(layer, "attention.logit_scale.weight"), gains[size_t(layer)].scale);
      const double of_all_heads = comm::all_reduce_value(target.mesh.tensor(), gains[size_t(layer)].divergence);
      divergence = std::max(divergence, of_all_heads / target.mesh.tensor().size());
    }
  }
  if (target.has_moments())
    for (int64_t layer = 0; layer < before.model.layers; ++layer) forget_directions(target, layer);
  target.decoder.parameters().round_to_compute();
  target.decoder.refresh();
  log::info(
      "held-out loss {:.4f} before, {:.4f} after{}", loss_before, loss_of(target, text),
      options.calibrate ? fmt::format("; attention moved by {:.3f} nats per row where it moved most", divergence) : "");
  target.write(options.to);
  log::info("{}: {}; train on with qk_norm {{kind: rms}}, logit_scale {{kind: auto}}, a new name and checkpoint.{}={}",
            options.to, target.run.qk_norm, target.has_moments() ? "resume" : "weights_from", options.to);
}

}  // namespace keel
