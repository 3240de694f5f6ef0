#include "models/decoder/cost.h"

#include "models/decoder/decoder.h"

namespace keel::models {

ModelCost Decoder::cost(int64_t length) const {
  ModelCost cost;
  for (const nn::Parameter& parameter : parameters_.all()) {
    const int64_t elements = parameter.spec.shape.elements();
    const std::string& name = parameter.spec.name;
    cost.parameters += elements;
    if (parameter.spec.product && &parameter != embedding_->table && &parameter != embedding_->position_table)
      cost.product_parameters += elements;
    if (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight")) cost.qk_norm_parameters += elements;
  }
  if (config_.tie_embeddings) cost.product_parameters += embedding_->table->spec.shape.elements();
  cost.attention_operations =
      12.0 * double(config_.layers) * double(config_.attention.heads) * double(config_.head_dim()) * double(length);
  return cost;
}

}  // namespace keel::models
