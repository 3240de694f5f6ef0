#include "framework/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keel {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(float(bf16(1.0f + 0x1p-8f)), 1.0f);  // a tie goes to the even neighbour
  EXPECT_EQ(float(bf16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_EQ(float(bf16(1.0f + 0x1p-7f)), 1.0f + 0x1p-7f);  // exact
  EXPECT_EQ(float(bf16(1.0f + 0x1p-8f + 0x1p-20f)), 1.0f + 0x1p-7f);
}

TEST(Bf16, KeepsSpecialValues) {
  float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float(bf16(infinity)), infinity);
  EXPECT_EQ(float(bf16(-infinity)), -infinity);
  EXPECT_TRUE(std::isnan(float(bf16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));  // a NaN whose payload is in the lower half
  EXPECT_EQ(float(bf16(3.4e38f)), infinity);
  EXPECT_TRUE(std::signbit(float(bf16(-0.0f))));
}

}  // namespace
}  // namespace keel
