// The training step on a GPU as `keel train` takes it: beside the CPU's, replayed as graphs, timed.
#pragma once

#include <nlohmann/json.hpp>

#include "framework/tensor/device.h"

namespace keel {

struct TrainedShape {
  const char* name;
  int64_t hidden, layers, heads, ffn, vocabulary, length, sequences;
  bool tied;
  bool both_ways;                   // also without graphs, which must give the same bits
  double target_tokens_per_second;  // on an H200; 0 = none
};

// A few steps of a small model in bf16 on the CPU and there: loss, gradient norm and update norm of each. Throws where
// they differ by more than 2 percent.
void compare_with_cpu(nlohmann::json& result, const TrainedShape& shape, Device device);

// Steps on the same random tokens, every tenth with telemetry: rates and memory. Throws where the loss does not fall or
// graphs change a bit. `product_rate` in operations per second, 0 = not known.
void train_there(nlohmann::json& result, const TrainedShape& shape, int64_t steps, double product_rate, Device device);

}  // namespace keel
