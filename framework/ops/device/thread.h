// Where a thread stands, barriers of a block, and the block's shared memory.
#pragma once

#include <cuda_runtime.h>

namespace keel::device {

constexpr int kWarp = 32;

__device__ __forceinline__ uint3 thread_index() {
  return threadIdx;
}
__device__ __forceinline__ uint3 block_index() {
  return blockIdx;
}
__device__ __forceinline__ dim3 block_size() {
  return blockDim;
}
__device__ __forceinline__ dim3 grid_size() {
  return gridDim;
}

// Waits for all threads of the block, which must all get to the same call.
__device__ __forceinline__ void sync_threads() {
  __syncthreads();
}

// The shared memory that the launch asked for, 16-byte aligned, from `offset_bytes` on; contents undefined. All shared
// memory of a kernel comes from here: kernels declare no __shared__ variables.
template <class T>
__device__ __forceinline__ T* shared_memory(size_t offset_bytes = 0) {
  extern __shared__ __align__(128) unsigned char keel_shared_memory[];
  return reinterpret_cast<T*>(keel_shared_memory + offset_bytes);
}

}  // namespace keel::device
