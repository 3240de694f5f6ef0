// What the environment chooses (README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace keel::cuda_host {

// Every kernel twice, compared, and device memory out of the host's reach. On unless KEEL_CUDA_HOST_CHECK=0.
bool checks_are_on();
uint64_t seed();
// Those that CUDA_VISIBLE_DEVICES lets through, of KEEL_CUDA_HOST_DEVICES.
int device_count();
// Shared memory that a block may opt in to; asked for at each launch, so that a test may change it.
size_t most_shared_bytes();
int physical_device(int visible);
// The newest CUDA that the driver knows, as the runtime writes versions.
int driver_version();
// Ten times the major number and the minor one.
int compute_capability();
// What CUDA_MODULE_LOADING said when the runtime was first asked for devices, as the real one reads it: once.
const std::string& module_loading();

}  // namespace keel::cuda_host
