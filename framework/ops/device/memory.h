// Loads and stores of 4, 8 or 16 bytes, asynchronous copies to shared memory.
#pragma once

#include <cstdint>

#include "framework/ops/device/thread.h"

namespace keel::device {

// V is a type of 4, 8 or 16 bytes, and the address a multiple of its size.
template <class V>
__device__ __forceinline__ V load_vector(const void* from) {
  return *static_cast<const V*>(from);
}
template <class V>
__device__ __forceinline__ void store_vector(void* to, const V& value) {
  *static_cast<V*>(to) = value;
}

// Starts a copy of 16 bytes from global to shared memory (cp.async), both addresses multiples of 16. Only the first
// `valid_bytes` are read, the rest becomes zero.
__device__ __forceinline__ void copy_async(void* to_shared, const void* from, unsigned valid_bytes = 16) {
  const auto to = unsigned(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(valid_bytes)
               : "memory");
}
// The same for 4 bytes, all of them or zeros.
__device__ __forceinline__ void copy_word_async(void* to_shared, const void* from, bool valid = true) {
  const auto to = unsigned(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(valid ? 4u : 0u)
               : "memory");
}
// Closes a group: this thread's copies since the last commit.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `Pending` of this thread's newest groups are not done. Other threads see the bytes after the next
// barrier.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace keel::device
