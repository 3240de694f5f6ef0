// Single passes of one layer and micro-batch, timed with and without what they are measured for. On the heads that this
// rank has.
#pragma once

#include "launch/bench/bench_step.h"

namespace keel {

// Median seconds with the feature and without it.
struct PassSeconds {
  double with = 0, without = 0;
  double extra() const { return with - without; }
};

// The first layer's QK-Norm and rotation, forward and backward, with what they exchange, against those of a model
// without QK-Norm.
PassSeconds qk_norm_pass(BenchedStep& step, BenchedStep& plain);
// What telemetry adds to a layer's forward pass: attention with the entropy and the largest logits' places, the mean
// squares of q and k, the share of parallel pairs, the moments and the range of the residual stream.
PassSeconds telemetry_pass(BenchedStep& step);

}  // namespace keel
