// What the environment chooses (README.md).
#pragma once

#include <cstdint>

namespace keel::cuda_host {

// Every kernel twice, compared, and device memory out of the host's reach. On unless KEEL_CUDA_HOST_CHECK=0.
bool checks_are_on();
uint64_t seed();
int device_count();

}  // namespace keel::cuda_host
