#include "framework/ops/qk_norm/head_gains.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;
using Floats = std::vector<float>;

constexpr int64_t H = 6, G = 2;

struct Outputs {
  explicit Outputs(int64_t query_heads = H, int64_t key_heads = G)
      : q({query_heads}, DType::f32),
        k({key_heads}, DType::f32),
        scale({query_heads}, DType::f32),
        bound({query_heads}, DType::f32) {}
  HeadGains gains() const { return {q, k, scale, bound}; }
  DeviceTensor q, k, scale, bound;
};

float largest(const Floats& weights, int64_t row, int64_t d, float shift) {
  if (weights.empty()) return 1;
  const int64_t first = int64_t(weights.size()) == d ? 0 : row * d;
  float largest = 0;
  for (int64_t i = first; i < first + d; ++i) largest = std::max(largest, std::abs(weights[size_t(i)] + shift));
  return largest;
}

// Every way in which gains and scales are kept: by head, shared, or not at all.
TEST(HeadGains, AreTheLargestOfEachHeadAndBoundItsLogits) {
  for (int64_t d : {1, 6, 32, 70, 256})
    for (int q_rows : {0, 1, int(H)})
      for (int k_rows : {0, 1, int(G)})
        for (int scales : {0, 1, int(H)})
          for (float shift : {0.f, 1.f}) {
            const DeviceTensor q = random_tensor({q_rows, d}, DType::f32, 1),
                               k = random_tensor({k_rows, d}, DType::f32, 2),
                               scale = random_tensor({scales}, DType::f32, 3);
            HeadGainWeights weights{.head_dim = d, .shift = shift, .initial_scale = -0.5f, .factor = 3};
            if (q_rows > 0) weights.q = q;
            if (k_rows > 0) weights.k = k;
            if (scales > 0) weights.scale = scale;
            const Outputs out;
            head_gains(out.gains(), weights);
            const Floats q_of = host_values(q), k_of = host_values(k), scale_of = host_values(scale);
            const Floats q_out = host_values(out.q), k_out = host_values(out.k), scale_out = host_values(out.scale),
                         bound_out = host_values(out.bound);
            for (int64_t h = 0; h < H; ++h) {
              const float w = scales == 0 ? 1 : std::abs(scale_of[scales == 1 ? 0 : size_t(h)]);
              const float q_gain = largest(q_of, h, d, shift), k_gain = largest(k_of, h / (H / G), d, shift);
              ASSERT_EQ(q_out[size_t(h)], q_gain) << d << " " << q_rows << " " << shift;
              ASSERT_EQ(k_out[size_t(h / (H / G))], k_gain) << d << " " << k_rows << " " << shift;
              ASSERT_EQ(scale_out[size_t(h)], w * 0.5f);
              ASSERT_FLOAT_EQ(bound_out[size_t(h)], 3 * w * q_gain * k_gain);
            }
          }
}

TEST(HeadGains, WithoutAFactorNothingIsBounded) {
  const Outputs out;
  head_gains(out.gains(), {.head_dim = 4});
  EXPECT_EQ(host_values(out.bound), Floats(H, INFINITY));
  EXPECT_EQ(host_values(out.q), Floats(H, 1));
}

TEST(HeadGains, OfMoreHeadsThanABlockHolds) {
  const Outputs out(70, 35);
  const DeviceTensor q = random_tensor({70, 8}, DType::f32, 4);
  head_gains(out.gains(), {.q = q, .head_dim = 8, .factor = 1});
  const Floats gains = host_values(out.q);
  for (int64_t h = 0; h < 70; ++h) EXPECT_EQ(gains[size_t(h)], largest(host_values(q), h, 8, 0));
}

TEST(HeadGains, ErrorsNameTheSizes) {
  const Outputs out;
  const DeviceTensor q({3, 4}, DType::f32);
  EXPECT_THAT([&] { head_gains(out.gains(), {.q = q, .head_dim = 4}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("query gains [3, 4] for 6 heads of 4")));
}

}  // namespace
}  // namespace keel::ops
