// What a decoder costs and consists of, for throughput and memory reports.
#pragma once

#include <cstdint>

namespace keel::models {

struct ModelCost {
  int64_t parameters = 0;          // logical, without the vocabulary's padding
  int64_t product_parameters = 0;  // in matrix products, without the embedding table (a tied head counts)
  int64_t qk_norm_parameters = 0;
  // 12 H d T of every layer: forward and backward, per token, uncausal; where a window of W cuts that, 12 H d 2W, so
  // that half of it is what a causal window costs.
  double attention_operations = 0;
  // What is computed again in the backward pass (model.recompute), per token, causal; no formula of MFU counts it.
  double recomputed_operations = 0;

  // Floating-point operations of a token, forward and backward.
  double operations_full() const { return 6.0 * double(product_parameters) + attention_operations; }
  double operations_causal() const { return 6.0 * double(product_parameters) + attention_operations / 2; }
};

}  // namespace keel::models
