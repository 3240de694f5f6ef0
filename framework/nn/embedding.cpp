#include "framework/nn/embedding.h"

#include "framework/ops/elementwise.h"
#include "framework/ops/embedding.h"

namespace keel::nn {

Embedding::Embedding(ParameterSet& parameters, const EmbeddingSpec& embedding_spec) : spec(embedding_spec) {
  table = &parameters.declare({.name = "embedding.weight",
                               .shape = {spec.vocabulary, spec.hidden},
                               .init = spec.init,
                               .decayed = spec.weight_decay,
                               .product = true});
  if (spec.learned_positions > 0)
    position_table = &parameters.declare({.name = "position_embedding.weight",
                                          .shape = {spec.learned_positions, spec.hidden},
                                          .init = spec.init,
                                          .decayed = spec.weight_decay,
                                          .product = true});
}

float Embedding::factor() const {
  const auto exact = float(spec.factor);
  return table->compute.dtype() == DType::bf16 ? float(bf16(exact)) : exact;
}

void Embedding::forward(Tensor x, ConstTensor tokens, ConstTensor positions, Context& context) const {
  ops::embedding_forward(x, table->compute, tokens, table->shard_offset(), factor());
  context.group->leave_forward(x);
  if (!position_table) return;
  auto scope = context.scratch.scope();
  Tensor place = context.scratch.take(x.shape(), x.dtype());
  ops::embedding_forward(place, position_table->compute, positions, 0, 1);
  ops::add(x, x, place);
}

void Embedding::backward(ConstTensor dx, ConstTensor tokens, ConstTensor positions) const {
  ops::embedding_backward(table->gradient, dx, tokens, table->shard_offset(), factor());
  if (position_table) ops::embedding_backward(position_table->gradient, dx, positions, 0, 1);
}

}  // namespace keel::nn
