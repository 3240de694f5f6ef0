// What telemetry steps count on a sample, against counting everything by hand.
#include "models/decoder/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

TEST(Probe, CountsParallelQueriesAndKeys) {
  constexpr int64_t T = 48, H = 4, G = 2, d = 4;
  Probe probe({.layers = 1, .hidden = 16, .heads = H, .kv_heads = G, .head_dim = d, .length = T, .device = {}});
  const OwnedTensor q = random_tensor({2 * T, H, d}, 2), k = random_tensor({2 * T, G, d}, 3);
  probe.begin_step();
  probe.look_at_heads(0, q, k);
  int64_t pairs = 0;
  std::vector<int> parallel(H, 0);
  auto cosine = [&](int64_t t, int64_t h, int64_t j) {
    const float *a = q.tensor.as<float>() + (t * H + h) * d, *b = k.tensor.as<float>() + (j * G + h / 2) * d;
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < d; ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / std::sqrt(aa * bb);
  };
  for (int64_t t = 2; t < T; t += 3, pairs += t - 2)  // 16 queries: 2, 5, ..., 47
    for (int64_t h = 0; h < H; ++h)
      for (int64_t j = 0; j <= t; ++j) parallel[size_t(h)] += std::abs(cosine(t, h, j)) > 0.95;
  EXPECT_EQ(probe.pairs(), pairs);
  for (int64_t h = 0; h < H; ++h) {
    EXPECT_GT(parallel[size_t(h)], 0) << "four dims: some are parallel by chance";
    EXPECT_EQ(probe.parallel().as<float>()[h], float(parallel[size_t(h)])) << h;
  }
}

}  // namespace
}  // namespace keel::models
