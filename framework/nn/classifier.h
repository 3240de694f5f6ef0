// logits = x W^T     loss = cross-entropy(logits, targets)     x [n, D], W [V, D]: the head, or the embedding table
//
// The last product and the loss in one layer, in chunks of tokens, so that the logits of a batch never exist: forward
// leaves dx behind. W may be split over the group by rows of the vocabulary; the ranks then combine three numbers per
// token, four with label smoothing.
#pragma once

#include "framework/nn/context.h"
#include "framework/ops/cross_entropy.h"
#include "framework/ops/matmul/matmul.h"

namespace keel::nn {

struct ClassifierSpec {
  int64_t vocabulary = 0;  // the real one
  double softcap = 0;
};

struct LossOptions {
  double z_loss = 0;
  double label_smoothing = 0;
};

class Classifier {
 public:
  // Of the tokens whose logits exist at one time.
  static constexpr int64_t kMostChunkTokens = 4096;

  // `table` is head.weight, or embedding.weight where tied.
  Classifier(Parameter& table, const ClassifierSpec& spec) : spec(spec), table(&table) {}

  void refresh() { packed_.refresh(table->compute, {.y = true, .dy = true}); }
  int64_t packed_bytes() const { return packed_.size_bytes(); }

  // One micro-batch.
  struct Inputs {
    ConstTensor x;        // [n, D]
    ConstTensor targets;  // [n] int32
    ConstTensor factor;   // [1] fp32; read with gradients only
  };
  // sums [4] fp64 += those of this micro-batch. With dx [n, D] (the activations' type) also the gradients: dx
  // overwritten, dW accumulated, of `factor` * the sum of the objective.
  void forward_backward(Tensor sums, Tensor dx, const Inputs& in, const LossOptions& options, Context& context) const;
  void evaluate(Tensor sums, ConstTensor x, ConstTensor targets, Context& context) const;
  // logits [n, this rank's columns] fp32, soft-capped; for generation.
  void logits(Tensor logits, ConstTensor x, Context& context) const;

  const ClassifierSpec spec;
  Parameter* table;

 private:
  ops::CrossEntropyOptions options(const LossOptions& loss) const;

  ops::PackedWeight packed_;
};

}  // namespace keel::nn
