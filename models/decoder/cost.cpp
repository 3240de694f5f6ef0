#include "models/decoder/cost.h"

#include <algorithm>

#include "models/decoder/decoder.h"

namespace keel::models {
namespace {

double attention_operations(const DecoderConfig& c, int64_t layer, int64_t length) {
  const bool windowed = c.attention.window && c.layer_kind(layer) == LayerKind::local;
  const int64_t keys = windowed ? std::min(length, 2 * *c.attention.window) : length;
  return 12.0 * double(c.attention.heads * c.head_dim() * keys);
}

// A forward pass is a third of a forward and a backward pass.
double recomputed_operations(const DecoderConfig& c, const ModelCost& cost) {
  if (c.recompute == nn::Recompute::none) return 0;
  const double attention = cost.attention_operations / 2 / 3;
  if (c.recompute == nn::Recompute::block)
    return 2 * double(cost.product_parameters - c.padded_vocab() * c.hidden) + attention;
  const double heads = double(c.layers * (c.attention.heads + 2 * c.kv_heads()));
  return 2 * heads * double(c.head_dim() * c.hidden) + attention;
}

}  // namespace

ModelCost Decoder::cost(int64_t length) const {
  ModelCost cost;
  for (const nn::Parameter& parameter : parameters_.all()) {
    const int64_t elements = parameter.spec.shape.elements();
    const std::string& name = parameter.spec.name;
    cost.parameters += elements;
    const bool table =
        &parameter == embedding_->position_table || (&parameter == embedding_->table && !config_.tie_embeddings);
    if (parameter.spec.product && !table) cost.product_parameters += elements;
    if (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight")) cost.qk_norm_parameters += elements;
  }
  const int64_t padding = (config_.padded_vocab() - config_.vocab.value()) * config_.hidden;
  cost.parameters -= (config_.tie_embeddings ? 1 : 2) * padding;
  for (int64_t layer = 0; layer < config_.layers; ++layer)
    cost.attention_operations += attention_operations(config_, layer, length);
  cost.recomputed_operations = recomputed_operations(config_, cost);
  return cost;
}

}  // namespace keel::models
