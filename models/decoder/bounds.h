// What QK-Norm promises: a bound on every pre-softmax logit that follows from gains and scales alone, whatever the
// activations are (QKNORM.md section 3).
//
//   l2     scope head: |s| <= |g| |gamma_q| |gamma_k|           scope full: the same
//   rms,   scope head: |s| <= |g| d |gamma_q| |gamma_k|         scope full: |s| <= |g| sqrt(H G) d |gamma_q| |gamma_k|
//   layer
//
// with |gamma| the largest absolute effective gain of that head, and times m^2 where the rotation follows the norm and
// multiplies by an amplitude m (YaRN). Before soft-cap; in exact arithmetic: a factor of 1 + 2^-8 is to be allowed for
// each rounding of q and of k to bf16, and 1 + 1e-5 in fp32.
#pragma once

#include <vector>

#include "models/decoder/decoder_config.h"

namespace keel::models {

// Logical values of one layer as they are stored, row-major; empty where the layer has none.
struct StoredGains {
  std::vector<float> q;      // [d] or [H, d]
  std::vector<float> k;      // [d] or [G, d]
  std::vector<float> scale;  // [1] or [H]: w of g = g0 w
};

// The part of a head's bound that does not change in training: g0, times m^2, times d, times sqrt(H G). 0 where nothing
// bounds it.
double bound_factor(const DecoderConfig& config, int64_t layer);

// [H]; empty where the layer's queries and keys are not normalised: nothing bounds its logits.
std::vector<double> logit_bounds(const DecoderConfig& config, int64_t layer, const StoredGains& stored);

}  // namespace keel::models
