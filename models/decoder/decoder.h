// A decoder-only transformer on this rank:
//
//   x = E[token]      x = block_l(x) for l = 0 ... L-1      loss = cross-entropy(norm(x) W_head^T, target)
//
// The formula of a block is in framework/nn/transformer_block.h, how it is split over ranks in parallelize.h.
#pragma once

#include "framework/nn/embedding.h"
#include "framework/nn/model.h"
#include "models/decoder/cost.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/telemetry_samples.h"

namespace keel::models {

// Where a decoder runs and on what.
struct DecoderLayout {
  nn::ParameterLayout parameters;
  nn::TensorGroup* group = nullptr;        // outlives the decoder
  nn::BatchShape batch;                    // of one micro-batch
  bool training = true;                    // false: forward only, with less memory
  DeviceKind rehearses = DeviceKind::cpu;  // on the meta device: where the step will run
};

class Decoder : public nn::Model {
 public:
  // Declares the parameters; no memory yet.
  explicit Decoder(const DecoderConfig& config);

  // Splits the model over the tensor group, plans and takes all memory.
  void allocate(const DecoderLayout& layout);
  // Initial values: a function of the seed, names and logical indices, and of the outliers that the config plants.
  void initialise(uint64_t seed);
  // On the meta device: visits every allocation of a real step, so that activation_bytes() is what one takes.
  void rehearse();

  nn::ParameterSet& parameters() override { return parameters_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }
  void refresh() override;
  void begin_step() override;
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override;
  void evaluate(Tensor sums, const nn::TokenBatch& batch) override;
  // The blocks' forward of a training step, for what block_saved() then shows.
  void forward(const nn::TokenBatch& batch);
  const nn::ModelTelemetry& telemetry() const override { return telemetry_; }
  bool clip_weights(ConstTensor factors) override;

  // The next token's logits after each sequence's last token: [B, vocabulary of this rank] fp32.
  void next_logits(Tensor logits, const nn::TokenBatch& batch);
  // Of sequences of this length.
  ModelCost cost(int64_t length) const;
  // What a real step takes from the two arenas, and packed weights.
  int64_t activation_bytes() const { return activation_bytes_; }
  int64_t packed_bytes() const;
  // All that a rank takes: the two, weights, gradients, and moments, where they are divided over `moment_shards` ranks.
  int64_t planned_bytes(int64_t moment_shards) const;

  const DecoderConfig& config() const { return config_; }
  // What a block kept of the last micro-batch of a training step; without recomputation.
  const nn::TransformerBlock::Saved& block_saved(int64_t layer) const { return training_saved_.blocks[size_t(layer)]; }
  nn::Embedding& embedding() { return *embedding_; }
  std::vector<std::unique_ptr<nn::TransformerBlock>>& blocks() { return blocks_; }
  nn::Classifier& classifier() { return *classifier_; }
  // Of the last telemetry step.
  const TelemetrySamples& samples() const { return samples_; }

 private:
  struct Saved {
    std::vector<nn::TransformerBlock::Saved> blocks;
    nn::Sublayer::Saved last;
  };

  void take_memory(const DecoderLayout& layout);
  nn::Context context();
  nn::TransformerBlock::Inputs inputs(int64_t layer, const nn::TokenBatch& batch) const;
  // What attention is to observe of a training step.
  nn::AttentionTelemetry attention_telemetry(int64_t layer, const nn::StepOptions& options);
  // The stream after the blocks of a training step.
  nn::ResidualStream run_blocks(const nn::TokenBatch& batch, const nn::StepOptions& options, nn::Context& context);
  // The stream after the embedding.
  nn::ResidualStream begin(const nn::TokenBatch& batch, nn::Context& context);
  // Forward without anything kept: what the classifier reads.
  Tensor last_hidden(const nn::TokenBatch& batch, nn::Context& context);
  void backward(Tensor dx, const nn::TokenBatch& batch, Saved& saved, const nn::StepOptions& options,
                nn::Context& context);
  Tensor rope_table(int64_t layer) const;

  DecoderConfig config_;
  nn::ParameterSet parameters_;
  std::optional<nn::Embedding> embedding_;
  std::vector<std::unique_ptr<nn::TransformerBlock>> blocks_;
  std::vector<size_t> first_parameter_;  // of each block, and of what follows the last
  std::optional<nn::Sublayer> last_;     // the norm before the head
  std::optional<nn::Classifier> classifier_;

  DecoderLayout layout_;
  Arena saved_, scratch_;
  int64_t activation_bytes_ = 0;
  Saved training_saved_;
  OwnedTensor global_rope_, local_rope_;
  std::vector<OwnedTensor> statistics_;  // of telemetry_
  std::vector<double> bound_factors_;    // [L]
  OwnedTensor least_factor_;             // [L], for QK-clip
  nn::ModelTelemetry telemetry_;
  TelemetrySamples samples_;
};

}  // namespace keel::models
