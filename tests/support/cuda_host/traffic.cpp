#include "tests/support/cuda_host/traffic.h"

#include <algorithm>
#include <vector>

namespace keel::cuda_host {
namespace {

std::vector<CountedMemory*> counted;  // changes between kernels only

}  // namespace

CountedMemory::CountedMemory(const void* begin, size_t size_bytes)
    : begin_(static_cast<const std::byte*>(begin)), end_(begin_ + size_bytes) {
  counted.push_back(this);
}

CountedMemory::~CountedMemory() {
  std::erase(counted, this);
}

void CountedMemory::count(const void* address, size_t size_bytes, bool store) {
  const auto* at = static_cast<const std::byte*>(address);
  for (CountedMemory* one : counted)
    if (at >= one->begin_ && at < one->end_) (store ? one->stored_ : one->loaded_) += int64_t(size_bytes);
}

}  // namespace keel::cuda_host

using keel::cuda_host::CountedMemory;

// The names that the compiler calls.
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read1(void* at) {
  CountedMemory::count(at, 1, false);
}
void __tsan_read2(void* at) {
  CountedMemory::count(at, 2, false);
}
void __tsan_read4(void* at) {
  CountedMemory::count(at, 4, false);
}
void __tsan_read8(void* at) {
  CountedMemory::count(at, 8, false);
}
void __tsan_read16(void* at) {
  CountedMemory::count(at, 16, false);
}
void __tsan_write1(void* at) {
  CountedMemory::count(at, 1, true);
}
void __tsan_write2(void* at) {
  CountedMemory::count(at, 2, true);
}
void __tsan_write4(void* at) {
  CountedMemory::count(at, 4, true);
}
void __tsan_write8(void* at) {
  CountedMemory::count(at, 8, true);
}
void __tsan_write16(void* at) {
  CountedMemory::count(at, 16, true);
}
void __tsan_read_range(void* at, size_t size_bytes) {
  CountedMemory::count(at, size_bytes, false);
}
void __tsan_write_range(void* at, size_t size_bytes) {
  CountedMemory::count(at, size_bytes, true);
}
void __tsan_unaligned_read16(void* at) {
  CountedMemory::count(at, 16, false);
}
void __tsan_unaligned_write16(void* at) {
  CountedMemory::count(at, 16, true);
}

}  // extern "C"
