// cp.async: a copy moves its bytes when its thread waits for it and not before, so that a missing wait shows.
#pragma once

#include <cstddef>

namespace keel::cuda_host {

// A fault unless the address is a multiple of `bytes`.
void require_aligned(const void* address, size_t bytes, const char* what);

// Of `bytes`, of which the first `valid_bytes` are read.
void start_copy(void* to_shared, const void* from, unsigned bytes, unsigned valid_bytes);
void commit_copies();
void wait_copies(int pending_groups);

}  // namespace keel::cuda_host
