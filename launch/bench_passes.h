// Single passes of one layer and micro-batch, timed with and without what they are measured for.
#pragma once

#include "launch/run_setup.h"

namespace keel {

// Median seconds with the feature and without it.
struct PassSeconds {
  double with = 0, without = 0;
  double extra() const { return with - without; }
};

// The fused QK-Norm + RoPE pass, forward and backward, against the same pass with kind none.
PassSeconds qk_norm_pass(const FullConfig& config, const train::BatchSizes& sizes, Device device);
// What telemetry adds to a layer: attention forward with the entropy and the largest logits' places, and the mean
// squares of q and k.
PassSeconds telemetry_pass(const FullConfig& config, const train::BatchSizes& sizes, Device device);

double median(std::vector<double> values);

}  // namespace keel
