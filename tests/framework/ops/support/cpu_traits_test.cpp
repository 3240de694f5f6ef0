// What is known of the CPU against what Linux says of it.
#include "framework/ops/support/cpu_traits.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace keel::ops::cpu {
namespace {

TEST(CpuTraits, SlowBf16IsIntelsSinceItHasHalfPrecision) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto says = [&](const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_EQ(has_slow_bf16(), says("GenuineIntel") && says(" avx512_fp16 "));
}

}  // namespace
}  // namespace keel::ops::cpu
