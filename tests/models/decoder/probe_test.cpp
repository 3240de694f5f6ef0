// What telemetry steps count on a sample, against counting everything by hand.
#include "models/decoder/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "framework/ops/elementwise.h"

namespace keel::models {
namespace {

OwnedTensor random_tensor(const Shape& shape, uint32_t seed) {
  OwnedTensor tensor(shape, DType::f32);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < shape.elements(); ++i) tensor.tensor.as<float>()[i] = normal(random);
  return tensor;
}

TEST(Probe, CountsOutliersOfTheStream) {
  Probe probe({.layers = 2, .hidden = 32, .heads = 1, .kv_heads = 1, .head_dim = 8, .length = 16, .device = {}});
  OwnedTensor x = random_tensor({400, 32}, 1);
  float* values = x.tensor.as<float>();
  for (int64_t row = 0; row < 400; ++row) values[row * 32 + 5] = row % 2 == 0 ? 50 : -50;
  probe.begin_step();
  probe.look_at_stream(1, x);
  probe.look_at_stream(1, x);  // another micro-batch
  const float* sums = probe.stream_sums().as<float>();
  EXPECT_EQ(sums[0], 0) << "layer 0 was not looked at";
  EXPECT_EQ(sums[4], 2 * 256 * 32);
  EXPECT_EQ(sums[5], 2 * 256) << "one feature of each token";
  double squares = 0, fourth = 0;
  for (int64_t i = 0; i < 256 * 32; ++i) squares += std::pow(values[i], 2), fourth += std::pow(values[i], 4);
  EXPECT_NEAR(sums[6], 2 * squares, 1e-5 * squares);
  EXPECT_NEAR(sums[7], 2 * fourth, 1e-5 * fourth);
  probe.begin_step();
  EXPECT_EQ(probe.stream_sums().as<float>()[4], 0);
}

TEST(Probe, CountsWhatLeavesTheRangeOfBf16) {
  Probe probe({.layers = 1, .hidden = 8, .heads = 1, .kv_heads = 1, .head_dim = 8, .length = 4, .device = {}});
  OwnedTensor x({4, 8}, DType::bf16);
  ops::fill(x, -2);
  bf16* values = x.tensor.as<bf16>();
  for (int64_t i : {0, 9}) values[i] = bf16(INFINITY);
  values[3] = bf16(-0x1.fep127f);
  for (int64_t i : {4, 5}) values[i] = bf16(0.f);
  values[31] = bf16(0x1p-127f);
  values[30] = bf16(0x1p-126f);
  for (int time = 0; time < 2; ++time) {
    probe.begin_step();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) probe.look_at_range(0, x);
    EXPECT_EQ(probe.out_of_range().as<double>()[0], 2 * 3) << "saturated";
    EXPECT_EQ(probe.out_of_range().as<double>()[1], 2 * 3) << "flushed";
    EXPECT_EQ(probe.range_elements(), 2 * 32);
  }
}

TEST(Probe, CountsParallelQueriesAndKeys) {
  constexpr int64_t T = 48, H = 4, G = 2, d = 4;
  Probe probe({.layers = 1, .hidden = 16, .heads = H, .kv_heads = G, .head_dim = d, .length = T, .device = {}});
  const OwnedTensor q = random_tensor({2 * T, H, d}, 2), k = random_tensor({2 * T, G, d}, 3);
  OwnedTensor starts({2, T}, DType::i32);
  for (int64_t t = 0; t < 2 * T; ++t) starts.tensor.as<int32_t>()[t] = int32_t(t % T / 20 * 20);
  constexpr int64_t kWindow = 12;
  auto cosine = [&](int64_t t, int64_t h, int64_t j) {
    const float *a = q.tensor.as<float>() + (t * H + h) * d, *b = k.tensor.as<float>() + (j * G + h / 2) * d;
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < d; ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / std::sqrt(aa * bb);
  };
  for (bool documents : {false, true})
    for (int64_t window : {int64_t(0), kWindow}) {
      int64_t pairs = 0;
      std::vector<int> parallel(H, 0);
      for (int64_t t = 2; t < T; t += 3)  // 16 queries: 2, 5, ..., 47
        for (int64_t j = 0; j <= t; ++j) {
          if ((documents && j / 20 != t / 20) || (window > 0 && t - j >= window)) continue;
          ++pairs;
          for (int64_t h = 0; h < H; ++h) parallel[size_t(h)] += std::abs(cosine(t, h, j)) > 0.95;
        }
      probe.begin_step();
      probe.look_at_heads(0, q, k, documents ? starts.tensor : Tensor(), window);
      EXPECT_EQ(probe.pairs().as<float>()[0], float(pairs));
      EXPECT_GT(std::accumulate(parallel.begin(), parallel.end(), 0), 0) << "four dims: some are parallel by chance";
      for (int64_t h = 0; h < H; ++h) EXPECT_EQ(probe.parallel().as<float>()[h], float(parallel[size_t(h)])) << h;
    }
}

}  // namespace
}  // namespace keel::models
