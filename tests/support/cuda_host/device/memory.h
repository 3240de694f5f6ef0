// The stand-in's side of framework/ops/device/memory.h.
#pragma once

#include <cstring>

#include "tests/support/cuda_host/async_copies.h"
#include "tests/support/cuda_host/device/thread.h"

namespace keel::device {

template <class V>
V load_vector(const void* from) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  cuda_host::require_aligned(from, sizeof(V), "load_vector");
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
void store_vector(void* to, const V& value) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  cuda_host::require_aligned(to, sizeof(V), "store_vector");
  std::memcpy(to, &value, sizeof(V));
}

inline void copy_async(void* to_shared, const void* from, unsigned valid_bytes = 16) {
  cuda_host::start_copy(to_shared, from, 16, valid_bytes);
}
inline void copy_word_async(void* to_shared, const void* from, bool valid = true) {
  cuda_host::start_copy(to_shared, from, 4, valid ? 4 : 0);
}
inline void commit_copies() {
  cuda_host::commit_copies();
}
template <int Pending>
void wait_copies() {
  cuda_host::wait_copies(Pending);
}

}  // namespace keel::device
