// The CUDA twin of buffer.h. Memory is zero-filled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/tensor/device.h"

namespace keel::cuda {

std::byte* allocate(Device device, int64_t size_bytes);
void release(std::byte* data);
std::byte* allocate_pinned(Device device, int64_t size_bytes);
void release_pinned(std::byte* data);

}  // namespace keel::cuda
