// Chosen on x86-64: the crc32 instruction of SSE4.2.
#include <nmmintrin.h>

#include <cstring>

#include "framework/io/crc32c_kernels.h"

namespace keel::io {
namespace {

__attribute__((target("sse4.2"))) uint32_t sse42(uint32_t state, std::span<const std::byte> data) {
  const std::byte* at = data.data();
  const std::byte* end = at + data.size();
  uint64_t wide = state;
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  state = uint32_t(wide);
  for (; at != end; ++at) state = _mm_crc32_u8(state, uint8_t(*at));
  return state;
}

}  // namespace

Crc32cKernel crc32c_instruction() {
  return __builtin_cpu_supports("sse4.2") ? sse42 : nullptr;
}

}  // namespace keel::io
