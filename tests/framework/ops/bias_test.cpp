#include "framework/ops/bias.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

TEST(AddBias, AddsToEveryRowAndRoundsOnce) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const int64_t rows = random_integer(seed, 1, 0, 40);
      const int64_t width = random_integer(seed, 2, 1, 40) * (seed % 2 ? 1 : 8);
      DeviceTensor y = random_tensor({rows, width}, dtype, seed, 1, 3),
                   bias = random_tensor({width}, DType::f32, seed + 1);
      Values expected = to_doubles(y), added = to_doubles(bias);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = float(expected[i]) + float(added[i % size_t(width)]);
      add_bias(y, bias);
      EXPECT_TRUE(same_bits(y, tensor_of({rows, width}, dtype, expected))) << rows << " rows of " << width;
    }
}

TEST(AddBias, RefusesWhatDoesNotFit) {
  DeviceTensor y({2, 4}, DType::f32), wide({5}, DType::f32), rounded({4}, DType::bf16);
  EXPECT_THROW(add_bias(y, wide), Error);
  EXPECT_THROW(add_bias(y, rounded), Error);
}

}  // namespace
}  // namespace keel::ops
