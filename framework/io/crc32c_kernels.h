// The ways to compute CRC32C. Both take and return the inverted register. One of crc32c_x86.cpp, crc32c_arm.cpp and
// crc32c_none.cpp is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace keel::io {

using Crc32cKernel = uint32_t (*)(uint32_t state, std::span<const std::byte> data);

// Eight tables of 256 entries, on any CPU.
uint32_t crc32c_tables(uint32_t state, std::span<const std::byte> data);
// The instruction of the CPU that runs this, or null where it has none.
Crc32cKernel crc32c_instruction();

}  // namespace keel::io
