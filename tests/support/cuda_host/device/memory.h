// The stand-in's side of framework/ops/device/memory.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
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
  cuda_host::start_copy16(to_shared, from, valid_bytes);
}
inline void commit_copies() {
  cuda_host::commit_copies();
}
template <int Pending>
void wait_copies() {
  cuda_host::wait_copies(Pending);
}

inline int atomic_add(int* to, int value) {
  return std::atomic_ref(*to).fetch_add(value);
}
inline unsigned atomic_add(unsigned* to, unsigned value) {
  return std::atomic_ref(*to).fetch_add(value);
}

namespace detail {

template <class T>
T atomic_max(T* to, T value) {
  std::atomic_ref<T> at(*to);
  T before = at.load();
  while (before < value && !at.compare_exchange_weak(before, value)) {
  }
  return before;
}

}  // namespace detail

inline int atomic_max(int* to, int value) {
  return detail::atomic_max(to, value);
}
inline unsigned atomic_max(unsigned* to, unsigned value) {
  return detail::atomic_max(to, value);
}

}  // namespace keel::device
