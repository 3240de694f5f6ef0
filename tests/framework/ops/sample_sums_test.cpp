#include "framework/ops/sample_sums.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

// What is there, count, outliers, squares, fourth powers, in double.
TEST(SampleSums, MomentsAreAddedToWhatIsThere) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t n : {1, 7, 64, 1000, 30001}) {
      const DeviceTensor x = random_tensor({n}, dtype, uint64_t(n), 3), sums = tensor_of({4}, DType::f32, {1, 2, 3, 4});
      add_moments(sums, x, 4);
      double expected[4] = {1 + double(n), 2, 3, 4};
      for (double value : to_doubles(x)) {
        expected[1] += std::abs(value) > 4;
        expected[2] += value * value;
        expected[3] += std::pow(value * kOfFourthPowers, 4);
      }
      const Values got = to_doubles(sums);
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], expected[i], 1e-6 * expected[i]) << n << " " << i;
    }
}

// A slice that begins between multiples of 16 bytes.
TEST(SampleSums, MomentsOfWhatIsNotAligned) {
  const DeviceTensor x = random_tensor({101}, DType::bf16, 5), sums({4}, DType::f32);
  add_moments(sums, x.tensor.slice(0, 1, 100), 1e9f);
  const Values values = to_doubles(x.tensor.slice(0, 1, 100));
  EXPECT_EQ(to_doubles(sums)[0], 99);
  EXPECT_EQ(to_doubles(sums)[1], 0);
  EXPECT_NEAR(to_doubles(sums)[2], dot(values, values), 1e-6 * dot(values, values));
}

struct Pairs {
  Values parallel;
  double pairs = 0;
};

// What the header says, in double. Throws no pair away that lies near the limit: tests keep clear of it.
Pairs count_pairs(const ParallelSample& sample, const std::vector<int64_t>& first_key) {
  const int64_t T = sample.q.size(0), H = sample.q.size(1), G = sample.k.size(1), d = sample.q.size(2);
  const Values q = to_doubles(sample.q), k = to_doubles(sample.k);
  Pairs counted{Values(size_t(H)), 0};
  for (int64_t i = 1; i <= sample.queries; ++i) {
    const int64_t t = i * T / sample.queries - 1;
    int64_t begin = first_key.empty() ? 0 : first_key[size_t(t)];
    if (sample.window > 0) begin = std::max(begin, t - sample.window + 1);
    const int64_t stride = (t + 1 - begin + sample.most_keys - 1) / sample.most_keys;
    std::vector<int64_t> keys;
    for (int64_t distance = (i - 1) * stride / sample.queries; t - distance >= begin; distance += stride)
      keys.push_back(t - distance);
    counted.pairs += double(keys.size());
    for (int64_t h = 0; h < H; ++h)
      for (int64_t j : keys) {
        double product = 0, of_q = 0, of_k = 0;
        for (int64_t c = 0; c < d; ++c) {
          const double a = q[size_t((t * H + h) * d + c)], b = k[size_t((j * G + h / (H / G)) * d + c)];
          product += a * b;
          of_q += a * a;
          of_k += b * b;
        }
        counted.parallel[size_t(h)] += std::abs(product) > double(sample.least) * std::sqrt(of_q * of_k);
      }
  }
  return counted;
}

// All of them, and at most seven of a query: of the 23 in a document, and of the 9 in a window, too.
TEST(SampleSums, ParallelPairsAreThoseOfVisibleKeys) {
  constexpr int64_t T = 70, H = 4, G = 2, kMostKeys = 7;
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t d : {3, 64})
      for (int64_t window : {0, 9})
        for (bool documents : {false, true}) {
          const DeviceTensor q = random_tensor({T, H, d}, dtype, 1), k = random_tensor({T, G, d}, dtype, 2);
          std::vector<int32_t> starts;
          for (int64_t t = 0; t < T; ++t) starts.push_back(int32_t(t / 23 * 23));
          const DeviceTensor first_key = device_tensor(starts);
          ParallelSample sample{.q = q,
                                .k = k,
                                .window = window,
                                .queries = 16,
                                .most_keys = d == 3 ? T : kMostKeys,
                                .least = d == 3 ? 0.8f : 0.1f};
          if (documents) sample.first_key = first_key;
          const Pairs expected = count_pairs(
              sample, documents ? std::vector<int64_t>(starts.begin(), starts.end()) : std::vector<int64_t>());
          const DeviceTensor parallel = tensor_of({H}, DType::f32, {10, 0, 0, 0}),
                             pairs = tensor_of({1}, DType::f32, {5});
          add_parallel_pairs(parallel, pairs, sample);
          EXPECT_EQ(to_doubles(pairs)[0], expected.pairs + 5);
          for (size_t h = 0; h < size_t(H); ++h) {
            EXPECT_EQ(to_doubles(parallel)[h], expected.parallel[h] + (h == 0 ? 10 : 0))
                << d << " " << window << " " << h;
            EXPECT_GT(expected.parallel[h], 0);
          }
        }
}

TEST(SampleSums, ErrorsNameTheSizes) {
  const DeviceTensor x({8}, DType::f32), sums({3}, DType::f32);
  try {
    add_moments(sums, x, 1);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("add_moments: sums"));
  }
}

}  // namespace
}  // namespace keel::ops
