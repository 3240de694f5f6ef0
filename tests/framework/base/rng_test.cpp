#include "framework/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace keel {
namespace {

TEST(Philox, KnownAnswers) {  // the vectors published with Random123
  EXPECT_EQ(philox(0, 0, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Uniform, MomentsAndIndependentStreams) {
  double sum = 0, squares = 0, product = 0;
  const int n = 200000;
  uint64_t a = key_of(1, "data"), b = key_of(1, "init");
  for (int i = 0; i < n; ++i) {
    double x = uniform(a, i), y = uniform(b, i);
    ASSERT_GT(x, 0);
    ASSERT_LT(x, 1);
    sum += x, squares += x * x, product += (x - 0.5) * (y - 0.5);
  }
  EXPECT_NEAR(sum / n, 0.5, 3e-3);
  EXPECT_NEAR(squares / n, 1.0 / 3, 3e-3);
  EXPECT_NEAR(product / n, 0, 1e-3);
}

TEST(InverseNormal, InvertsTheDistributionFunction) {
  for (double p : {1e-12, 1e-5, 0.02, 0.3, 0.5, 0.77, 0.99, 1 - 1e-9}) {
    EXPECT_NEAR(0.5 * std::erfc(-inverse_normal(p) / std::sqrt(2.0)), p, 1e-14 + 1e-12 * p);
  }
}

TEST(Permutation, EveryElementOnceAtEverySize) {
  for (uint64_t n : {1, 2, 3, 4, 5, 10, 16, 17, 1000}) {
    for (uint64_t key : {0, 7}) {
      Permutation order(key, n);
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < n; ++i) seen.insert(order(i));
      EXPECT_EQ(seen.size(), n);
      EXPECT_LT(*seen.rbegin(), n);
    }
  }
}

TEST(Permutation, KeysGiveDifferentOrdersAndLargeSizesWork) {
  Permutation a(1, 1000), b(2, 1000);
  int same = 0;
  for (int i = 0; i < 1000; ++i) same += a(i) == b(i);
  EXPECT_LT(same, 20);
  Permutation large(3, 3'000'000'000'000ull);
  EXPECT_LT(large(2'999'999'999'999ull), 3'000'000'000'000ull);
}

}  // namespace
}  // namespace keel
