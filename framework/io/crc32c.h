// CRC32C (Castagnoli; RFC 3720, appendix B.4): polynomial 0x1EDC6F41, reflected, starting from and inverted with ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace keel::io {

// The checksum of `data`, or of everything so far where `crc` is that of the data before. crc32c({}) is 0. Uses the
// CPU's own instruction where there is one.
uint32_t crc32c(std::span<const std::byte> data, uint32_t crc = 0);

}  // namespace keel::io
