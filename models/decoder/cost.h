// What a decoder costs and consists of, for throughput and memory reports.
#pragma once

#include <cstdint>

namespace keel::models {

struct ModelCost {
  int64_t parameters = 0;          // logical
  int64_t product_parameters = 0;  // in matrix products, without the embedding table (a tied head counts)
  int64_t qk_norm_parameters = 0;
  double attention_operations = 0;  // 12 * L * H * d * T: forward and backward, per token, uncausal

  // Floating-point operations of a token, forward and backward.
  double operations_full() const { return 6.0 * double(product_parameters) + attention_operations; }
  double operations_causal() const { return 6.0 * double(product_parameters) + attention_operations / 2; }
};

}  // namespace keel::models
