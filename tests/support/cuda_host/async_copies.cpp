#include "tests/support/cuda_host/async_copies.h"

#include <fmt/format.h>

#include <cstring>

#include "tests/support/cuda_host/block.h"
#include "tests/support/cuda_host/faults.h"

namespace keel::cuda_host {

void require_aligned(const void* address, size_t bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) [[likely]]
    return;
  fault(fmt::format("misaligned: {} at {}, which is no multiple of {}", what, address, bytes));
}

void start_copy(void* to_shared, const void* from, unsigned bytes, unsigned valid_bytes) {
  require_aligned(to_shared, bytes, "copy_async to");
  require_aligned(from, bytes, "copy_async from");
  if (valid_bytes > bytes) fault(fmt::format("copy_async of more than {} bytes", bytes));
  AsyncCopies& copies = this_thread().copies;
  copies.waiting.push_back({to_shared, from, bytes, valid_bytes, copies.groups});
}

void commit_copies() {
  ++this_thread().copies.groups;
}

void wait_copies(int pending_groups) {
  AsyncCopies& copies = this_thread().copies;
  while (!copies.waiting.empty() && copies.waiting.front().group + unsigned(pending_groups) < copies.groups) {
    const AsyncCopies::One copy = copies.waiting.front();
    copies.waiting.pop_front();
    std::memset(copy.to, 0, copy.bytes);
    std::memcpy(copy.to, copy.from, copy.valid_bytes);
  }
}

}  // namespace keel::cuda_host
