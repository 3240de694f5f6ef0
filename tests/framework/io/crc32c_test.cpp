#include "framework/io/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

#include "framework/io/crc32c_kernels.h"

namespace keel::io {
namespace {

using Bytes = std::vector<uint8_t>;

uint32_t crc(const Bytes& bytes, uint32_t before = 0) {
  return crc32c(std::as_bytes(std::span(bytes)), before);
}

Bytes random_bytes(size_t n) {
  std::mt19937 random(unsigned(n) + 1);
  Bytes bytes(n);
  for (uint8_t& byte : bytes) byte = uint8_t(random());
  return bytes;
}

TEST(Crc32c, VectorsOfRfc3720) {
  Bytes ascending(32), descending(32);
  for (int i = 0; i < 32; ++i) ascending[i] = uint8_t(i), descending[i] = uint8_t(31 - i);
  EXPECT_EQ(crc(Bytes(32, 0x00)), 0x8a9136aau);
  EXPECT_EQ(crc(Bytes(32, 0xff)), 0x62a8ab43u);
  EXPECT_EQ(crc(ascending), 0x46dd794eu);
  EXPECT_EQ(crc(descending), 0x113fdb5cu);
  Bytes command(48, 0);  // an iSCSI read command
  command[0] = 0x01, command[1] = 0xc0, command[16] = 0x14, command[22] = 0x04, command[27] = 0x14;
  command[31] = 0x18, command[32] = 0x28, command[40] = 0x02;
  EXPECT_EQ(crc(command), 0xd9963a56u);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xe3069283u);
  EXPECT_EQ(crc({}), 0u);
}

// One bit at a time, from the definition.
uint32_t by_definition(const Bytes& bytes) {
  uint32_t state = ~0u;
  for (uint8_t byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) state = state & 1 ? (state >> 1) ^ 0x82F63B78u : state >> 1;
  }
  return ~state;
}

TEST(Crc32c, EveryKernelAtEveryLengthAndAlignment) {
  std::vector<Crc32cKernel> kernels = {crc32c_tables};
  if (crc32c_instruction()) kernels.push_back(crc32c_instruction());
  for (size_t n = 0; n < 70; ++n)
    for (size_t skip = 0; skip < 8; ++skip) {
      Bytes bytes = random_bytes(n + skip);
      const uint32_t expected = by_definition({bytes.begin() + ptrdiff_t(skip), bytes.end()});
      auto data = std::as_bytes(std::span(bytes)).subspan(skip);
      for (Crc32cKernel kernel : kernels) ASSERT_EQ(~kernel(~0u, data), expected) << n << " " << skip;
      ASSERT_EQ(crc32c(data), expected);
    }
}

TEST(Crc32c, Continues) {
  Bytes all = random_bytes(10000);
  const uint32_t whole = crc(all);
  for (size_t cut : {0, 1, 7, 8, 4096, 9999, 10000}) {
    Bytes a(all.begin(), all.begin() + ptrdiff_t(cut)), b(all.begin() + ptrdiff_t(cut), all.end());
    EXPECT_EQ(crc(b, crc(a)), whole) << cut;
  }
}

}  // namespace
}  // namespace keel::io
