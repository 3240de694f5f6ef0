// A model as the training loop knows it: parameters, one micro-batch forward and backward, and what a step observed.
#pragma once

#include <span>

#include "framework/nn/classifier.h"
#include "framework/nn/parameter.h"

namespace keel::nn {

// Token ids of one micro-batch: what every model here is fed. Each [B, T] int32.
struct TokenBatch {
  ConstTensor tokens;
  ConstTensor targets;    // -1: not counted
  ConstTensor positions;  // place within the document
  ConstTensor first_key;  // first position of the sequence that a row may see; undefined without document masks
};

// Statistics of attention over one step, per layer and head of this rank: [L, H], what is of keys [L, G], fp32.
struct ModelTelemetry {
  Tensor largest_logit;
  // What bounds it (ops/qk_norm/head_gains.h); undefined where no layer has QK-Norm.
  Tensor logit_bound, q_gain, k_gain, logit_scale;
  // Of telemetry steps only.
  Tensor largest_logit_place;   // int64: the first place of the largest logit (ops/attention/logit_place.h); 0: none
  Tensor entropy;               // sum over the tokens of this rank
  Tensor q_squares, k_squares;  // mean squares before the norm, summed over micro-batches
  int64_t heads = 0, kv_heads = 0;  // of the whole model
};

struct StepOptions {
  ConstTensor factor;  // [1] fp32 where the model lies: 1 / counted tokens of the global batch
  LossOptions loss;
  bool telemetry = false;      // everything in ModelTelemetry
  int64_t first_sequence = 0;  // number of the micro-batch's first sequence among the step's, for places
  // Called during backward when every gradient declared at or after this parameter's index is complete, last parameters
  // first; 0 at the end.
  std::function<void(size_t)> gradients_complete;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual ParameterSet& parameters() = 0;
  virtual const ParameterSet& parameters() const = 0;
  // After every change of the weights: packs them for products.
  virtual void refresh() = 0;
  // Before the first micro-batch of a step.
  virtual void begin_step() = 0;
  // Accumulates gradients and sums ([4] fp64 where the model lies: ops::CrossEntropySums). Sums are this rank's; equal
  // on the ranks of a tensor group.
  virtual void forward_backward(Tensor sums, const TokenBatch& batch, const StepOptions& options) = 0;
  // Adds to sums; no gradients.
  virtual void evaluate(Tensor sums, const TokenBatch& batch) = 0;
  // Of the step that the last begin_step() began.
  virtual const ModelTelemetry& telemetry() const = 0;
  // After an update of the master weights and before they are rounded and shared: keeps gains and scales within the
  // config's bounds, and with factors [L, H of this rank] (QKNORM.md section 6, QK-clip) scales what bounds each head's
  // logits. Returns whether it may have changed weights that have a rounded copy.
  virtual bool clip_weights(ConstTensor factors) = 0;
};

}  // namespace keel::nn
