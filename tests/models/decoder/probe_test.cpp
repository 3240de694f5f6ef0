// What telemetry steps count on a sample, against counting everything by hand.
#include "models/decoder/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "framework/ops/elementwise.h"
#include "tests/support/device.h"

namespace keel::testing {
namespace {

class Probes : public ::testing::TestWithParam<DType> {
 protected:
  DeviceTensor there(const std::vector<float>& values, const Shape& shape) const {
    DeviceTensor tensor(shape, GetParam());
    ops::convert(tensor, device_tensor(values).tensor.reshaped(shape));
    return tensor;
  }
  // As the type under test holds them.
  std::vector<float> random_values(const Shape& shape, uint32_t seed) const {
    std::vector<float> values(size_t(shape.elements()));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : values) {
      value = normal(random);
      if (GetParam() == DType::bf16) value = bf16(value);
    }
    return values;
  }
};

TEST_P(Probes, CountsOutliersOfTheStream) {
  // An odd width, so that rows do not begin at wide addresses.
  for (int64_t hidden : {32, 33}) {
    models::Probe probe({.layers = 2, .heads = 1, .length = 16, .device = test_device()});
    std::vector<float> values = random_values({400, hidden}, 1);
    for (int64_t row = 0; row < 400; ++row) values[size_t(row * hidden + 5)] = row % 2 == 0 ? 50 : -50;
    const DeviceTensor x = there(values, {400, hidden});
    probe.begin_step();
    probe.look_at_stream(1, x);
    probe.look_at_stream(1, x);  // another micro-batch
    const std::vector<float> sums = host_values(probe.stream_sums());
    EXPECT_EQ(sums[0], 0) << "layer 0 was not looked at";
    EXPECT_EQ(sums[4], float(2 * 256 * hidden));
    EXPECT_EQ(sums[5], 2 * 256) << "one feature of each token";
    double squares = 0, fourth = 0;
    for (size_t i = 0; i < size_t(256 * hidden); ++i)
      squares += std::pow(values[i], 2), fourth += std::pow(values[i], 4);
    EXPECT_NEAR(sums[6], 2 * squares, 1e-5 * squares);
    EXPECT_NEAR(sums[7], 2 * fourth, 1e-5 * fourth);
    probe.begin_step();
    EXPECT_EQ(host_values(probe.stream_sums())[4], 0);
  }
}

TEST_P(Probes, CountsParallelQueriesAndKeys) {
  constexpr int64_t T = 48, H = 4, G = 2, d = 4;
  models::Probe probe({.layers = 1, .heads = H, .length = T, .device = test_device()});
  const std::vector<float> q = random_values({2 * T, H, d}, 2), k = random_values({2 * T, G, d}, 3);
  probe.begin_step();
  probe.look_at_heads(0, there(q, {2 * T, H, d}), there(k, {2 * T, G, d}));
  int64_t pairs = 0;
  std::vector<float> parallel(H, 0);
  auto cosine = [&](int64_t t, int64_t h, int64_t j) {
    const float *a = &q[size_t((t * H + h) * d)], *b = &k[size_t((j * G + h / 2) * d)];
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < d; ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / std::sqrt(aa * bb);
  };
  for (int64_t t = 2; t < T; t += 3, pairs += t - 2)  // 16 queries: 2, 5, ..., 47
    for (int64_t h = 0; h < H; ++h)
      for (int64_t j = 0; j <= t; ++j) parallel[size_t(h)] += std::abs(cosine(t, h, j)) > 0.95;
  EXPECT_EQ(probe.pairs(), pairs);
  for (float count : parallel) EXPECT_GT(count, 0) << "four dims: some are parallel by chance";
  EXPECT_EQ(host_values(probe.parallel()), parallel);
}

INSTANTIATE_TEST_SUITE_P(Types, Probes, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::testing
