// What `keel plan` assumes of a device: published peaks, or this machine's own rates, measured.
#pragma once

#include <string>

#include "framework/tensor/dtype.h"

namespace keel {

struct DeviceSheet {
  std::string name;
  bool gpu = false;
  double memory_bytes = 0;  // of one rank
  double bf16_rate = 0;     // products, operations per second
  double fp32_rate = 0;
  double memory_rate = 0;   // bytes per second
  double link_rate = 0;     // bytes per second and direction between ranks of one host
  double network_rate = 0;  // between hosts, per rank
  int ranks_per_host = 1;
  double program_bytes = 0;   // of a process before it has a model
  double exchange_bytes = 0;  // scratch of collectives, where there is more than one rank

  double product_rate(DType type) const { return type == DType::bf16 ? bf16_rate : fp32_rate; }
};

// What each of so many ranks on one machine has of its memory, its products and its memory traffic.
DeviceSheet shared_by(int64_t ranks, DeviceSheet machine);

// b200, gh200, h200, h100, a100 or cpu (this machine, its products measured with the threads of this process, shared by
// `ranks`). Throws for other names, with the nearest.
DeviceSheet device_sheet(const std::string& name, int64_t ranks);

// The GPU of that product name ("NVIDIA H200"); null where no data sheet is at hand.
const DeviceSheet* known_gpu(const std::string& product);

}  // namespace keel
