// x[t] = E[token[t]] * factor (+ P[position[t]])     E [V, D], P [positions, D], x [n, D]
//
// The factor is a number of E's compute type, as in Gemma's published code: sqrt(2560) is 50.5 in bf16.
// E may be split over the group by rows of the vocabulary: each rank looks up its own ids, the group adds.
#pragma once

#include "framework/nn/context.h"

namespace keel::nn {

struct EmbeddingSpec {
  int64_t vocabulary = 0;  // rows, padding included
  int64_t hidden = 0;
  int64_t learned_positions = 0;  // 0 = none
  double factor = 1;
  bool weight_decay = true;
  Init init;
};

class Embedding {
 public:
  // Parameters embedding.weight and position_embedding.weight.
  Embedding(ParameterSet& parameters, const EmbeddingSpec& spec);

  // x in the residual type; tokens and positions [n] int32.
  void forward(Tensor x, ConstTensor tokens, ConstTensor positions, Context& context) const;
  // dx [n, D] in the residual type; both tables' gradients accumulate.
  void backward(ConstTensor dx, ConstTensor tokens, ConstTensor positions) const;

  float factor() const;

  const EmbeddingSpec spec;
  Parameter* table;
  Parameter* position_table = nullptr;
};

}  // namespace keel::nn
