#include <cstring>

#include "framework/tensor/cuda_call.h"
#include "framework/tensor/gpu.h"

namespace keel::cuda {
namespace {

std::string version_text(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

int gpu_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  cudaGetLastError();  // the next call must not see it again
  const bool none = result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver;
  if (none) return 0;
  KEEL_CUDA(result);
  return count;
}

Gpu describe_gpu(int index) {
  cudaDeviceProp properties;
  KEEL_CUDA(cudaGetDeviceProperties(&properties, index));
  Gpu gpu{properties.name, {}, int64_t(properties.totalGlobalMem), properties.major, properties.minor};
  static_assert(sizeof gpu.identity == sizeof properties.uuid);
  std::memcpy(gpu.identity.data(), &properties.uuid, sizeof properties.uuid);
  return gpu;
}

std::string cuda_versions() {
  int runtime = 0, driver = 0;
  KEEL_CUDA(cudaRuntimeGetVersion(&runtime));
  KEEL_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format("runtime {}, driver {}", version_text(runtime), version_text(driver));
}

}  // namespace keel::cuda
