#include "framework/ops/qk_norm/qk_clip.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;
using Floats = std::vector<float>;

TEST(QkClip, FactorsAreTauOverTheLargest) {
  const DeviceTensor largest = tensor_of({2, 3}, DType::f32, {50, 100, 200, 0, 99, 101}), factors({2, 3}, DType::f32);
  qk_clip_factors(factors, largest, device_tensor(Floats{0.3f, 1}), 100);
  EXPECT_EQ(host_values(factors), (Floats{1, 1, 0.5f, 1, 1, 100.f / 101}));
  qk_clip_factors(factors, largest, device_tensor(Floats{0.3f, 0}), 100);
  EXPECT_EQ(host_values(factors), Floats(6, 1.f)) << "no update was made";
}

TEST(QkClip, SmallestOfEachRow) {
  for (int64_t columns : {1, 3, 70}) {
    const DeviceTensor x = random_tensor({5, columns}, DType::f32, uint64_t(columns)), smallest({5}, DType::f32);
    smallest_of_rows(smallest, x);
    const Floats all = host_values(x), least = host_values(smallest);
    for (int64_t row = 0; row < 5; ++row)
      EXPECT_EQ(least[size_t(row)], *std::min_element(all.begin() + row * columns, all.begin() + (row + 1) * columns));
  }
}

TEST(QkClip, ScalesRowsByTheirFactorsOrAllByOne) {
  for (int64_t columns : {1, 3, 8, 64, 65})
    for (float shift : {0.f, 1.f})
      for (bool one : {false, true}) {
        const DeviceTensor weights = random_tensor({4, columns}, DType::f32, 7);
        const Floats before = host_values(weights), c = one ? Floats{0.75f} : Floats{1, 0.5f, 1, 0.25f};
        scale_rows(weights, device_tensor(c), shift);
        const Floats after = host_values(weights);
        for (size_t i = 0; i < after.size(); ++i) {
          const float factor = c[one ? 0 : i / size_t(columns)];
          const float expected = factor == 1 ? before[i] : factor * (before[i] + shift) - shift;
          ASSERT_EQ(after[i], expected) << i << " of " << columns << " columns";
        }
      }
}

TEST(QkClip, ClampsAndKeepsNan) {
  const DeviceTensor weights = device_tensor(Floats{-3, -2, 0.5f, 2, 7, NAN});
  clamp(weights, -2, 2);
  const Floats after = host_values(weights);
  EXPECT_EQ(Floats(after.begin(), after.end() - 1), (Floats{-2, -2, 0.5f, 2, 2}));
  EXPECT_TRUE(std::isnan(after.back()));
}

TEST(QkClip, ErrorsNameBothSizes) {
  const DeviceTensor weights({4, 2}, DType::f32), factors({3}, DType::f32);
  EXPECT_THAT([&] { scale_rows(weights, factors, 0); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("3 factors for [4, 2]")));
}

}  // namespace
}  // namespace keel::ops
