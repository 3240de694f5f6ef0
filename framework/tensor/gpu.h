// What GPUs this process sees. A build without CUDA sees none.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace keel {

struct Gpu {
  std::string name;
  std::array<uint64_t, 2> identity{};  // CUDA's UUID: one physical device, whatever its number in a process
  int64_t memory_bytes = 0;
  int capability_major = 0, capability_minor = 0;
};

namespace cuda {

// How many CUDA_VISIBLE_DEVICES lets through; 0 where there is no driver.
int gpu_count();
// What to do about a driver that is older than the build's CUDA, with both versions; "" where it is not.
std::string old_driver();
Gpu describe_gpu(int index);
int64_t free_memory_bytes(int index);
// "runtime 13.0, driver 13.0", or empty in a build without CUDA.
std::string cuda_versions();

}  // namespace cuda
}  // namespace keel
