// What telemetry steps count on a sample, against counting everything by hand.
#include "models/decoder/telemetry_samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "framework/ops/elementwise.h"
#include "framework/ops/sample_sums.h"
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
    models::TelemetrySamples samples({.layers = 2, .heads = 1, .length = 16, .device = test_device()});
    std::vector<float> values = random_values({400, hidden}, 1);
    for (int64_t row = 0; row < 400; ++row) values[size_t(row * hidden + 5)] = row % 2 == 0 ? 50 : -50;
    const DeviceTensor x = there(values, {400, hidden});
    samples.begin_step();
    samples.look_at_stream(1, x);
    samples.look_at_stream(1, x);  // another micro-batch
    const std::vector<float> sums = host_values(samples.stream_sums());
    EXPECT_EQ(sums[0], 0) << "layer 0 was not looked at";
    EXPECT_EQ(sums[4], float(2 * 400 * hidden));
    EXPECT_EQ(sums[5], 2 * 400) << "one feature of each token";
    double squares = 0, fourth = 0;
    for (size_t i = 0; i < size_t(400 * hidden); ++i)
      squares += std::pow(values[i], 2), fourth += std::pow(values[i], 4);
    EXPECT_NEAR(sums[6], 2 * squares, 1e-5 * squares);
    const double scale = std::pow(ops::kOfFourthPowers, 4);
    EXPECT_NEAR(sums[7], 2 * scale * fourth, 1e-5 * scale * fourth);
    samples.begin_step();
    EXPECT_EQ(host_values(samples.stream_sums())[4], 0);
  }
}

// A stream that grows without end has a kurtosis as long as it has squares. A million elements.
TEST_P(Probes, AHugeStreamHasFourthPowers) {
  models::TelemetrySamples samples({.layers = 1, .heads = 1, .length = 16, .device = test_device()});
  const float huge = GetParam() == DType::bf16 ? float(bf16(1e12f)) : 1e12f;
  samples.begin_step();
  const DeviceTensor stream = there(std::vector<float>(2048 * 32, huge), {2048, 32});
  for (int micro_batch = 0; micro_batch < 16; ++micro_batch) samples.look_at_stream(0, stream);
  const auto moments = models::StreamMoments::of(host_values(samples.stream_sums()).data());
  EXPECT_NEAR(moments.kurtosis, 1, 1e-5);
  EXPECT_EQ(moments.outliers, 1);
}

TEST_P(Probes, CountsParallelQueriesAndKeys) {
  constexpr int64_t T = 48, H = 4, G = 2, d = 4, kWindow = 12;
  models::TelemetrySamples samples({.layers = 1, .heads = H, .length = T, .device = test_device()});
  const std::vector<float> q = random_values({2 * T, H, d}, 2), k = random_values({2 * T, G, d}, 3);
  std::vector<int32_t> starts(2 * T);
  for (int64_t t = 0; t < 2 * T; ++t) starts[size_t(t)] = int32_t(t % T / 20 * 20);
  const DeviceTensor q_there = there(q, {2 * T, H, d}), k_there = there(k, {2 * T, G, d}),
                     starts_there = device_tensor(starts);
  auto cosine = [&](int64_t t, int64_t h, int64_t j) {
    const float *a = &q[size_t((t * H + h) * d)], *b = &k[size_t((j * G + h / 2) * d)];
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < d; ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / std::sqrt(aa * bb);
  };
  for (bool documents : {false, true})
    for (int64_t window : {int64_t(0), kWindow}) {
      float pairs = 0;
      std::vector<float> parallel(H, 0);
      for (int64_t t = 2; t < T; t += 3)  // 16 queries: 2, 5, ..., 47
        for (int64_t j = 0; j <= t; ++j) {
          if ((documents && j / 20 != t / 20) || (window > 0 && t - j >= window)) continue;
          ++pairs;
          for (int64_t h = 0; h < H; ++h) parallel[size_t(h)] += std::abs(cosine(t, h, j)) > 0.95;
        }
      samples.begin_step();
      samples.look_at_heads(0, q_there, k_there,
                            documents ? ConstTensor(starts_there.tensor.reshaped({2, T})) : ConstTensor(), window);
      EXPECT_EQ(host_values(samples.pairs()), std::vector<float>{pairs});
      EXPECT_GT(std::accumulate(parallel.begin(), parallel.end(), 0.f), 0) << "four dims: some are parallel by chance";
      EXPECT_EQ(host_values(samples.parallel()), parallel);
    }
}

// Of a long sequence every part is looked at, at every distance, and no more of it than of a short one. Keys of the
// last eighth are parallel to all queries.
TEST_P(Probes, LooksAtAllOfALongSequence) {
  constexpr int64_t T = 2560, d = 8, kQueries = 16, kMostKeys = 512, kFirst = T / 8 * 7;
  models::TelemetrySamples samples({.layers = 1, .heads = 1, .length = T, .device = test_device()});
  std::vector<float> q(size_t(T * d), 0), k(size_t(T * d), 0);
  for (int64_t t = 0; t < T; ++t) q[size_t(t * d)] = 1, k[size_t(t * d + (t < kFirst ? 1 : 0))] = 2;
  float parallel = 0, pairs = 0;
  for (int64_t i = 1; i <= kQueries; ++i) {
    const int64_t t = i * T / kQueries - 1, stride = (t + kMostKeys) / kMostKeys;
    for (int64_t j = t - (i - 1) * stride / kQueries; j >= 0; j -= stride) ++pairs, parallel += j >= kFirst;
  }
  ASSERT_GT(parallel, 0);
  EXPECT_LE(pairs, kQueries * kMostKeys);
  samples.begin_step();
  samples.look_at_heads(0, there(q, {T, 1, d}), there(k, {T, 1, d}), ConstTensor(), 0);
  EXPECT_EQ(host_values(samples.pairs()), std::vector<float>{pairs});
  EXPECT_EQ(host_values(samples.parallel()), std::vector<float>{parallel});
  // Each query sees one document of three tokens, and all of it.
  std::vector<int32_t> starts(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) starts[size_t(t)] = int32_t(std::max<int64_t>(0, t - 2));
  const DeviceTensor starts_there = device_tensor(starts);
  samples.begin_step();
  samples.look_at_heads(0, there(q, {T, 1, d}), there(k, {T, 1, d}), starts_there.tensor.reshaped({1, T}), 0);
  EXPECT_EQ(host_values(samples.pairs()), std::vector<float>{3 * kQueries});
}

TEST(TelemetrySamples, CountsWhatLeavesTheRangeOfBf16) {
  models::TelemetrySamples samples({.layers = 1, .heads = 1, .length = 4, .device = test_device()});
  std::vector<float> values(32, -2);
  for (size_t i : {0, 9}) values[i] = INFINITY;
  values[3] = -0x1.fep127f;
  for (size_t i : {4, 5}) values[i] = 0;
  values[31] = 0x1p-127f;
  values[30] = 0x1p-126f;
  DeviceTensor x({4, 8}, DType::bf16);
  ops::convert(x, device_tensor(values).tensor.reshaped({4, 8}));
  for (int time = 0; time < 2; ++time) {
    samples.begin_step();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) samples.look_at_range(0, x);
    const HostTensor counts(samples.out_of_range());
    EXPECT_EQ(counts.tensor().as<double>()[0], 2 * 3) << "saturated";
    EXPECT_EQ(counts.tensor().as<double>()[1], 2 * 3) << "flushed";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Probes, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::testing
