// Single passes of a training step on a GPU, timed against the bytes and operations that they cannot do without.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "framework/tensor/device.h"

namespace keel {

struct PassTime {
  std::string name;
  double seconds = 0;
  double bytes = 0;       // the least that must move between memory and the chip
  double operations = 0;  // floating-point, of matrix products; 0 where memory is the limit
  // What it should take at most on an H200, where the sizes are those of the target; 0: none is set.
  double target_seconds = 0;
  std::string error;  // what kept it from being timed
};

struct Passes {
  std::string name;
  std::function<void()> time;
};

// Every pass of a step but its products, in bf16 with fp32 weights, in groups that share tensors. Each pass is handed
// on as soon as it was timed. `small`: sizes for the stand-in.
std::vector<Passes> pass_groups(Device device, bool small, const std::function<void(const PassTime&)>& done);

}  // namespace keel
