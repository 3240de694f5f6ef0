#include "framework/io/crc32c.h"

#include <array>

#include "framework/io/crc32c_kernels.h"

namespace keel::io {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reversed: bit 31 stands for x^0

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (int t = 1; t < 8; ++t)  // tables[t]: the byte, then t zero bytes
    for (int byte = 0; byte < 256; ++byte) {
      uint32_t crc = tables[t - 1][byte];
      tables[t][byte] = (crc >> 8) ^ tables[0][crc & 255];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c_tables(uint32_t state, std::span<const std::byte> data) {
  auto byte = [&](size_t i) { return uint32_t(data[i]); };
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    uint32_t low = state ^ (byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24);
    state = kTables[7][low & 255] ^ kTables[6][low >> 8 & 255] ^ kTables[5][low >> 16 & 255] ^ kTables[4][low >> 24] ^
            kTables[3][byte(i + 4)] ^ kTables[2][byte(i + 5)] ^ kTables[1][byte(i + 6)] ^ kTables[0][byte(i + 7)];
  }
  for (; i < data.size(); ++i) state = (state >> 8) ^ kTables[0][(state ^ byte(i)) & 255];
  return state;
}

uint32_t crc32c(std::span<const std::byte> data, uint32_t crc) {
  static const Crc32cKernel kernel = crc32c_instruction() ? crc32c_instruction() : crc32c_tables;
  return ~kernel(~crc, data);
}

}  // namespace keel::io
