// One way to lay a run out over ranks, with what each rank would hold and exchange: counted by taking the step on the
// meta device, where it visits every allocation and every exchange of a real one.
#pragma once

#include "launch/common/device_sheet.h"
#include "launch/common/run_setup.h"

namespace keel {

// Bytes of one rank.
struct PlannedMemory {
  double weights = 0;  // fp32 masters
  double copies = 0;   // bf16, where products read those; and forms of them that the CPU's products want
  double gradients = 0, moments = 0;
  double saves = 0;        // what is written in the background is a copy; on GPUs it lies with the host
  double activations = 0;  // saved and scratch, of one micro-batch
  double tables = 0;       // positions, token ids of a step
  double scratch = 0;      // of collectives, and of products that widen bf16
  double program = 0;
  double total() const {
    return weights + copies + gradients + moments + saves + activations + tables + scratch + program;
  }
};

// Of one step of one rank, all micro-steps.
struct PlannedTime {
  double products = 0, memory = 0;  // seconds at the device's peak rates
  double tensor = 0, data = 0;      // seconds of exchanges
  double total() const;             // plan_layout.cpp says what overlaps
};

struct LayoutPlan {
  int64_t tensor = 1, data = 1;
  int64_t rows = 1, micro = 1;    // sequences of a step on a data rank, and of a micro-step
  int64_t largest_micro = 0;      // that the device's memory holds; 0: none
  double bytes_per_sequence = 0;  // activations of one more sequence in a micro-batch
  PlannedMemory memory;
  double tensor_bytes = 0, data_bytes = 0;  // sent by a rank per step
  PlannedTime time;
  std::string refused;  // why it does not divide; "" where it does
  bool fits() const { return refused.empty() && largest_micro >= micro; }
};

LayoutPlan plan_layout(const FullConfig& config, const DeviceSheet& device, int64_t tensor, int64_t data);

}  // namespace keel
