#include <cstring>

#include "framework/tensor/cuda_call.h"
#include "framework/tensor/gpu.h"

namespace keel::cuda {
namespace {

std::string version_text(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

cudaError_t count_devices(int& count) {
  const cudaError_t result = cudaGetDeviceCount(&count);
  cudaGetLastError();  // the next call must not see it again
  return result;
}

}  // namespace

int gpu_count() {
  int count = 0;
  const cudaError_t result = count_devices(count);
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) return 0;
  KEEL_CUDA(result);
  return count;
}

std::string old_driver() {
  int count = 0, driver = 0, runtime = 0;
  if (count_devices(count) != cudaErrorInsufficientDriver) return {};
  KEEL_CUDA(cudaDriverGetVersion(&driver));
  KEEL_CUDA(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return {};  // there is none
  return fmt::format("the driver is made for CUDA {}, this build for {}: update the driver", version_text(driver),
                     version_text(runtime));
}

Gpu describe_gpu(int index) {
  cudaDeviceProp properties;
  KEEL_CUDA(cudaGetDeviceProperties(&properties, index));
  Gpu gpu{properties.name, {}, int64_t(properties.totalGlobalMem), properties.major, properties.minor};
  static_assert(sizeof gpu.identity == sizeof properties.uuid);
  std::memcpy(gpu.identity.data(), &properties.uuid, sizeof properties.uuid);
  return gpu;
}

int64_t free_memory_bytes(int index) {
  KEEL_CUDA(cudaSetDevice(index));
  size_t free_bytes = 0, all_bytes = 0;
  KEEL_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  return int64_t(free_bytes);
}

std::string cuda_versions() {
  int runtime = 0, driver = 0;
  KEEL_CUDA(cudaRuntimeGetVersion(&runtime));
  KEEL_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format("runtime {}, driver {}", version_text(runtime), version_text(driver));
}

}  // namespace keel::cuda
