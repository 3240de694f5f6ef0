// From a launch to executed blocks.
#pragma once

#include <driver_types.h>

#include <utility>

#include "tests/support/cuda_host/block.h"

namespace keel::cuda_host {

// Limits of an H200 that a launch may not exceed.
constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocksY = 65535;
constexpr size_t kMostSharedBytesPerBlock = 232448;  // 227 KiB, which kernels opt in to
constexpr int kMultiprocessors = 3;

// cudaErrorInvalidConfiguration or cudaErrorInvalidValue where the device could not run it.
cudaError_t check_launch(const Kernel& kernel);
// Runs all blocks, twice where checks are on. False when a fault was recorded.
bool execute(const Kernel& kernel);

}  // namespace keel::cuda_host
