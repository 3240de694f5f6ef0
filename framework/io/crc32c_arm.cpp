// Chosen on aarch64: the CRC32 extension of ARMv8.
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstring>

#include "framework/io/crc32c_kernels.h"

namespace keel::io {
namespace {

__attribute__((target("+crc"))) uint32_t armv8(uint32_t state, std::span<const std::byte> data) {
  const std::byte* at = data.data();
  const std::byte* end = at + data.size();
  for (; end - at >= 8; at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    state = __crc32cd(state, word);
  }
  for (; at != end; ++at) state = __crc32cb(state, uint8_t(*at));
  return state;
}

}  // namespace

Crc32cKernel crc32c_instruction() {
  return getauxval(AT_HWCAP) & HWCAP_CRC32 ? armv8 : nullptr;
}

}  // namespace keel::io
