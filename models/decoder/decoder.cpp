#include "models/decoder/decoder.h"

#include <algorithm>
#include <cmath>

#include "framework/base/trace.h"
#include "framework/ops/elementwise.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/tensor/copy.h"
#include "models/decoder/block_specs.h"
#include "models/decoder/bounds.h"
#include "models/decoder/parallelize.h"

namespace keel::models {

Decoder::Decoder(const DecoderConfig& config) : config_(config) {
  embedding_.emplace(parameters_, embedding_spec(config));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    first_parameter_.push_back(parameters_.all().size());
    blocks_.push_back(std::make_unique<nn::TransformerBlock>(parameters_, block_spec(config, layer)));
  }
  first_parameter_.push_back(parameters_.all().size());
  for (int64_t layer = 0; layer < config.layers; ++layer) bound_factors_.push_back(bound_factor(config, layer));
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (size_t i = first_parameter_[size_t(layer)]; i < first_parameter_[size_t(layer) + 1]; ++i) {
      nn::ParameterSpec& spec = parameters_.all()[i].spec;
      if (spec.product) spec.layer = layer;
    }
  last_.emplace(parameters_, "final", config.hidden, nn::NormPlacement::pre, norm_spec(config));
  nn::Parameter* head = embedding_->table;
  if (!config.tie_embeddings)
    head = &parameters_.declare({.name = "head.weight",
                                 .shape = {config.padded_vocab(), config.hidden},
                                 .init = matrix_init(config, config.hidden, 1),
                                 .decayed = true,
                                 .product = true});
  classifier_.emplace(*head, nn::ClassifierSpec{config.vocab.value(), config.final_softcap.value_or(0)});
}

void Decoder::allocate(const DecoderLayout& layout) {
  parallelize(*this, layout.parameters.tensor.size);
  layout_ = layout;
  parameters_.allocate(layout.parameters);
  if (layout.parameters.device.is_meta()) return take_memory(layout);
  ops::require_attention_fits(layout.parameters.device, layout.parameters.activation, config_.head_dim(),
                              layout.training);

  Decoder plan(config_);
  DecoderLayout nowhere = layout;
  nowhere.parameters.device = {DeviceKind::meta};
  nowhere.rehearses = layout.parameters.device.kind;
  plan.allocate(nowhere);
  plan.rehearse();
  saved_ = Arena(layout.parameters.device, plan.saved_.peak_bytes());
  scratch_ = Arena(layout.parameters.device, plan.scratch_.peak_bytes());
  activation_bytes_ = plan.activation_bytes_;
  take_memory(layout);
}

void Decoder::initialise(uint64_t seed) {
  parameters_.initialise(seed);
  if (!config_.init.outliers) return;
  Tensor table = embedding_->table->master;
  OwnedTensor values(table.shape(), DType::f32);
  copy(values, table);
  for (int64_t row = 0; row < table.size(0); ++row)
    for (int64_t feature = 0; feature < config_.init.outliers->features; ++feature)
      values.tensor.as<float>()[row * table.size(1) + feature] *= float(config_.init.outliers->factor);
  copy(table, values);
  parameters_.round_to_compute();
}

void Decoder::rehearse() {
  const Device meta = layout_.parameters.device;
  require(meta.is_meta(), "a rehearsal needs the meta device, not the {}", meta.text());
  const nn::BatchShape& batch = layout_.batch;
  const Tensor ids(nullptr, {batch.sequences, batch.length}, DType::i32, meta), sums(nullptr, {4}, DType::f64, meta);
  const Tensor factor(nullptr, {1}, DType::f32, meta);
  refresh();
  if (layout_.training) {
    begin_step();
    forward_backward(sums, {ids, ids, ids, ids}, {.factor = factor, .telemetry = true});
  }
  evaluate(sums, {ids, ids, ids, ids});
  next_logits(Tensor(nullptr, {batch.sequences, classifier_->table->local[0]}, DType::f32, meta), {ids, ids, ids, ids});
  activation_bytes_ = saved_.peak_bytes() + scratch_.peak_bytes();
}

void Decoder::take_memory(const DecoderLayout& layout) {
  const Device device = layout.parameters.device;
  training_saved_.blocks.resize(blocks_.size());
  const Shape table = {layout.batch.length, config_.rotated_features()};
  if (config_.positions.global == PositionKind::rope) {
    global_rope_ = OwnedTensor(table, DType::f32, device);
    ops::rope_table(global_rope_, config_.rope.theta, rope_scaling(config_, LayerKind::global));
  }
  if (config_.positions.local == PositionKind::rope) {
    local_rope_ = OwnedTensor(table, DType::f32, device);
    ops::rope_table(local_rope_, config_.rope.local_theta.value_or(config_.rope.theta),
                    rope_scaling(config_, LayerKind::local));
  }
  const Shape heads = {config_.layers, blocks_[0]->attention.heads()};
  const Shape kv_heads = {config_.layers, blocks_[0]->attention.kv_heads()};
  nn::ModelTelemetry& own = telemetry_;
  const auto take = [&](std::initializer_list<Tensor*> statistics, const Shape& shape, DType dtype = DType::f32) {
    for (Tensor* statistic : statistics) *statistic = statistics_.emplace_back(shape, dtype, device);
  };
  statistics_.clear();
  own = {.heads = config_.attention.heads, .kv_heads = config_.kv_heads()};
  take({&own.largest_logit, &own.entropy, &own.q_squares}, heads);
  take({&own.largest_logit_place}, heads, DType::i64);
  take({&own.k_squares}, kv_heads);
  if (std::ranges::any_of(bound_factors_, [](double factor) { return factor > 0; })) {
    take({&own.logit_bound, &own.q_gain, &own.logit_scale}, heads);
    take({&own.k_gain}, kv_heads);
  }
  least_factor_ = OwnedTensor({config_.layers}, DType::f32, device);
  if (layout.training)
    samples_ = TelemetrySamples(
        {.layers = config_.layers, .heads = heads[1], .length = layout.batch.length, .device = device});
}

void Decoder::refresh() {
  for (auto& block : blocks_) block->refresh();
  classifier_->refresh();
}

void Decoder::begin_step() {
  for (const Tensor& statistic : {telemetry_.largest_logit, telemetry_.largest_logit_place, telemetry_.entropy,
                                  telemetry_.q_squares, telemetry_.k_squares})
    zero(statistic);
  for (int64_t layer = 0; telemetry_.logit_bound.defined() && layer < config_.layers; ++layer) {
    auto row = [layer](const Tensor& rows) { return rows.row(layer); };
    const nn::ModelTelemetry& own = telemetry_;
    blocks_[size_t(layer)]->attention.observe_gains(
        {row(own.q_gain), row(own.k_gain), row(own.logit_scale), row(own.logit_bound)}, bound_factors_[size_t(layer)]);
  }
  samples_.begin_step();
}

nn::Context Decoder::context() {
  saved_.reset();
  scratch_.reset();
  const Device device = layout_.parameters.device;
  return {saved_, scratch_, layout_.parameters.activation, layout_.group,
          device.is_meta() ? layout_.rehearses : device.kind};
}

Tensor Decoder::rope_table(int64_t layer) const {
  if (!config_.layer_has_rope(layer)) return {};
  return config_.layer_kind(layer) == LayerKind::global ? global_rope_.tensor : local_rope_.tensor;
}

nn::TransformerBlock::Inputs Decoder::inputs(int64_t layer, const nn::TokenBatch& batch) const {
  nn::TransformerBlock::Inputs in;
  in.batch = {batch.tokens.size(0), batch.tokens.size(1)};
  in.positions = {batch.positions.flat(), rope_table(layer), batch.first_key};
  return in;
}

nn::AttentionTelemetry Decoder::attention_telemetry(int64_t layer, const nn::StepOptions& options) {
  nn::AttentionTelemetry wanted;
  wanted.largest_logit = telemetry_.largest_logit.row(layer);
  if (!options.telemetry) return wanted;
  wanted.largest_logit_place = telemetry_.largest_logit_place.row(layer);
  wanted.entropy = telemetry_.entropy.row(layer);
  wanted.q_squares = telemetry_.q_squares.row(layer);
  wanted.k_squares = telemetry_.k_squares.row(layer);
  wanted.first_sequence = options.first_sequence;
  wanted.observer = &samples_;
  wanted.layer = layer;
  return wanted;
}

nn::ResidualStream Decoder::begin(const nn::TokenBatch& batch, nn::Context& context) {
  const Shape shape = {batch.tokens.elements(), config_.hidden};
  const bool wide = config_.residual == ResidualType::fp32;
  nn::ResidualStream stream;
  stream.residual = context.saved.take(shape, wide ? DType::f32 : context.activation);
  stream.branch = context.scratch.take(shape, context.activation);
  embedding_->forward(stream.residual, batch.tokens.flat(), batch.positions.flat(), context);
  return stream;
}

nn::ResidualStream Decoder::run_blocks(const nn::TokenBatch& batch, const nn::StepOptions& options,
                                       nn::Context& context) {
  nn::ResidualStream stream = begin(batch, context);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    nn::TransformerBlock::Inputs in = inputs(layer, batch);
    in.telemetry = attention_telemetry(layer, options);
    const Span span("block forward", layer);
    blocks_[layer]->forward(stream, in, training_saved_.blocks[layer], context);
    if (options.telemetry) samples_.look_at(layer, stream);
  }
  return stream;
}

void Decoder::forward(const nn::TokenBatch& batch) {
  nn::Context context = this->context();
  run_blocks(batch, {}, context);
}

void Decoder::forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) {
  nn::Context context = this->context();
  Saved& saved = training_saved_;
  nn::ResidualStream stream = run_blocks(batch, options, context);
  Tensor x = last_->open(stream, saved.last, context);
  // The branch has been added: its memory serves dx.
  Tensor dx = stream.branch;
  classifier_->forward_backward(sums, dx, {x, batch.targets.flat(), options.factor}, options.loss, context);
  backward(dx, batch, saved, options, context);
}

void Decoder::backward(Tensor dx, const nn::TokenBatch& batch, Saved& saved, const nn::StepOptions& options,
                       nn::Context& context) {
  auto complete = [&](size_t first) {
    if (options.gradients_complete) options.gradients_complete(first);
  };
  Tensor d = context.scratch.take(dx.shape(), saved.last.residual.dtype());
  Tensor buffer = context.scratch.take(dx.shape(), context.activation);
  ops::fill(d, 0);
  last_->open_backward(d, dx, saved.last);
  complete(first_parameter_[config_.layers]);
  for (int64_t layer = config_.layers - 1; layer >= 0; --layer) {
    const Span span("block backward", layer);
    blocks_[layer]->backward(d, inputs(layer, batch), saved.blocks[layer], {buffer, dx}, context);
    complete(first_parameter_[layer]);
  }
  embedding_->backward(d, batch.tokens.flat(), batch.positions.flat());
  complete(0);
}

Tensor Decoder::last_hidden(const nn::TokenBatch& batch, nn::Context& context) {
  nn::ResidualStream stream = begin(batch, context);
  Tensor residual = context.saved.take(stream.residual.shape(), stream.residual.dtype());
  nn::TransformerBlock::Saved unused;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    auto scope = context.saved.scope();
    blocks_[layer]->forward(stream, inputs(layer, batch), unused, context);
    ops::convert(residual, stream.residual);
    stream.residual = residual;
  }
  nn::Sublayer::Saved last;
  return last_->open(stream, last, context);
}

void Decoder::evaluate(Tensor sums, const nn::TokenBatch& batch) {
  nn::Context context = this->context();
  Tensor x = last_hidden(batch, context);
  classifier_->evaluate(sums, x, batch.targets.flat(), context);
}

void Decoder::next_logits(Tensor logits, const nn::TokenBatch& batch) {
  nn::Context context = this->context();
  const int64_t B = batch.tokens.size(0), T = batch.tokens.size(1);
  Tensor x = last_hidden(batch, context).reshaped({B, T, config_.hidden});
  for (int64_t b = 0; b < B; ++b) {
    classifier_->logits(logits.slice(0, b, b + 1), x.row(b).slice(0, T - 1, T), context);
  }
}

int64_t Decoder::packed_bytes() const {
  int64_t sum = classifier_->packed_bytes();
  for (const auto& block : blocks_) sum += block->packed_bytes();
  return sum;
}

int64_t Decoder::planned_bytes(int64_t moment_shards) const {
  return int64_t(nn::state_bytes(parameters_, moment_shards).total()) + packed_bytes() + activation_bytes();
}

}  // namespace keel::models
