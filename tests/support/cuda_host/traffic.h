// What kernels read from and write to device memory, counted access by access: sources compiled with -fsanitize=thread
// call __tsan_read4 and its like for each, and traffic.cpp stands in that sanitizer's place. An access counts each
// time, also where a cache would serve it; what a thread keeps in registers does not count again. Asynchronous copies
// to shared memory (cp.async) are not seen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace keel::cuda_host {

// Counts while it lives.
class CountedMemory {
 public:
  CountedMemory(const void* begin, size_t size_bytes);
  ~CountedMemory();
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  int64_t loaded_bytes() const { return loaded_; }
  int64_t stored_bytes() const { return stored_; }
  // An access to any memory.
  static void count(const void* address, size_t size_bytes, bool store);

 private:
  const std::byte *begin_, *end_;
  std::atomic<int64_t> loaded_ = 0, stored_ = 0;
};

// Products of 16x16 and 16x8 matrices (mma.sync) so far, by warps.
int64_t matrix_products();

}  // namespace keel::cuda_host
