// The stand-in's side of framework/ops/device/thread.h.
#pragma once

#include <cuda_runtime.h>

#include "tests/support/cuda_host/block.h"

namespace keel::device {

constexpr int kWarp = 32;

inline uint3 thread_index() {
  return cuda_host::this_thread().index;
}
inline uint3 block_index() {
  return cuda_host::this_thread().block_index;
}
inline dim3 block_size() {
  return cuda_host::this_thread().block_size;
}
inline dim3 grid_size() {
  return cuda_host::this_thread().grid_size;
}

inline void sync_threads(std::source_location place = std::source_location::current()) {
  cuda_host::block_barrier(place);
}

template <class T>
T* shared_memory(size_t offset_bytes = 0) {
  return reinterpret_cast<T*>(cuda_host::this_thread().shared + offset_bytes);
}

}  // namespace keel::device

// g++ has no use for it; the resource report of the nvcc build is where it counts.
#define __launch_bounds__(...)
