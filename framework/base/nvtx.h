// NVTX ranges of the calling thread, for NVIDIA's profilers; in builds without CUDA, nothing.
#pragma once

namespace keel::nvtx {

void push(const char* name) noexcept;
void pop() noexcept;

}  // namespace keel::nvtx
