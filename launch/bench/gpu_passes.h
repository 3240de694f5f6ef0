// Single passes of a training step on a GPU, timed against the bytes and operations that they cannot do without.
#pragma once

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
};

// Every pass of a step but its products, in bf16 with fp32 weights. `small`: sizes for the stand-in.
std::vector<PassTime> time_passes(Device device, bool small);

}  // namespace keel
