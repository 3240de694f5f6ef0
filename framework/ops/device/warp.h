// Exchange between the lanes of a warp. All lanes of `mask` call together; values from lanes outside are undefined.
#pragma once

#include "framework/ops/device/thread.h"

namespace keel::device {

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ unsigned lane() {
  return threadIdx.x % kWarp;
}

__device__ __forceinline__ void sync_warp(unsigned mask = kAllLanes) {
  __syncwarp(mask);
}

// The value of lane (own xor `bits`).
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, unsigned bits, unsigned mask = kAllLanes) {
  return __shfl_xor_sync(mask, value, int(bits));
}
// The value of lane `from` (modulo 32).
template <class T>
__device__ __forceinline__ T shuffle(T value, unsigned from, unsigned mask = kAllLanes) {
  return __shfl_sync(mask, value, int(from));
}
// Bit i: whether lane i's predicate holds.
__device__ __forceinline__ unsigned ballot(bool predicate, unsigned mask = kAllLanes) {
  return __ballot_sync(mask, predicate);
}
__device__ __forceinline__ bool any(bool predicate, unsigned mask = kAllLanes) {
  return __any_sync(mask, predicate);
}
__device__ __forceinline__ bool all(bool predicate, unsigned mask = kAllLanes) {
  return __all_sync(mask, predicate);
}

__device__ __forceinline__ int count_bits(unsigned bits) {
  return __popc(bits);
}

}  // namespace keel::device
