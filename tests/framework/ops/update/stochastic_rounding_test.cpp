// Copies that are rounded up or down by chance: the two neighbours only, the weight in the mean, and the same bits on
// every device, in every split and after a resume.
#include "framework/ops/update/stochastic_rounding.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "framework/base/rng.h"
#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

constexpr uint64_t kKey = 0x123456789abcdef;

struct Call {
  int64_t updates = 0;
  bool made = true;
  int64_t run = 1 << 30, stride = 1, offset = 0;
};

// The copies of `x`, made where it lies.
std::vector<uint16_t> rounded(const OwnedTensor& x, Device device, const Call& call) {
  const Shape shape = x.tensor.shape();
  OwnedTensor y(shape, DType::bf16, device), updates({1}, DType::i64, device), gate({2}, DType::f32, device);
  copy(updates, ConstTensor(&call.updates, {1}, DType::i64));
  const float of_gate[2] = {1, call.made ? 1.f : 0.f};
  copy(gate, ConstTensor(of_gate, {2}, DType::f32));
  round_stochastically(y, x, {kKey, updates, gate, call.run, call.stride, call.offset});
  std::vector<uint16_t> bits;
  const HostTensor host(y);
  for (int64_t i = 0; i < shape.elements(); ++i) bits.push_back(host.tensor().as<bf16>()[i].bits);
  return bits;
}
std::vector<uint16_t> rounded(const std::vector<float>& values, const Call& call) {
  return rounded(device_tensor(values), test_device(), call);
}

std::vector<float> weights(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[size_t(i)] = float(0.02 * inverse_normal(uniform(kKey, uint64_t(i))));
  return values;
}

// The value that bf16 holds next to x towards zero, and away from it.
float towards_zero(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
}
float away_from_zero(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0xffff0000u) + 0x10000u);
}
float value_of(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

TEST(StochasticRounding, GivesTheTwoNeighboursWithTheWeightAsTheirMean) {
  constexpr int kUpdates = 8, kCopies = 512, kDraws = kUpdates * kCopies;
  for (float x : {1.001f, -1.001f, 0.37f, -3e-5f, 1.f, -0.f, 1e-40f, 255.9f, 77.7f}) {
    const float lower = towards_zero(x), upper = x == lower ? x : away_from_zero(x);
    double sum = 0;
    for (int update = 0; update < kUpdates; ++update)
      for (uint16_t bits : rounded(std::vector<float>(kCopies, x), {.updates = update})) {
        EXPECT_TRUE(value_of(bits) == lower || value_of(bits) == upper) << value_of(bits) << " for " << x;
        sum += value_of(bits);
      }
    // Four deviations: a draw has half a step at most.
    EXPECT_NEAR(sum / kDraws, x, 2 * std::abs(double(upper) - double(lower)) / std::sqrt(double(kDraws))) << x;
  }
}

TEST(StochasticRounding, NeighbouringWeightsAndUpdatesDrawIndependently) {
  constexpr int64_t kElements = 1 << 16;
  const std::vector<float> half(kElements, 1 + 0x1p-8f);  // between 1 and 1 + 2^-7
  const std::vector<uint16_t> now = rounded(half, {.updates = 5}), next = rounded(half, {.updates = 6});
  int64_t up = 0, both = 0, in_a_row = 0;
  for (size_t i = 0; i < size_t(kElements); ++i) {
    const auto is_up = [](uint16_t bits) { return bits == 0x3f81; };
    up += is_up(now[i]);
    both += is_up(now[i]) && is_up(next[i]);
    in_a_row += is_up(now[i]) && is_up(now[(i + 1) % size_t(kElements)]);
  }
  const double deviation = std::sqrt(double(kElements));
  EXPECT_NEAR(double(up), kElements / 2.0, 2 * deviation);
  EXPECT_NEAR(double(both), kElements / 4.0, 2 * deviation);
  EXPECT_NEAR(double(in_a_row), kElements / 4.0, 2 * deviation);
}

TEST(StochasticRounding, HasTheSameBitsOnEveryDeviceAndThreadCount) {
  for (int64_t n : {1, 7, 8, 1000, 100003}) {
    const std::vector<float> x = weights(n);
    OwnedTensor here({n}, DType::f32);
    copy(here, ConstTensor(x.data(), {n}, DType::f32));
    const std::vector<uint16_t> on_cpu = rounded(here, {}, {.updates = 3});
    EXPECT_EQ(rounded(x, {.updates = 3}), on_cpu) << n;
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    EXPECT_EQ(rounded(here, {}, {.updates = 3}), on_cpu) << n;
    omp_set_num_threads(threads);
  }
}

// A matrix [rows, columns], by rows, by blocks of columns and by flat pieces of any size.
TEST(StochasticRounding, HasTheSameBitsInEverySplit) {
  constexpr int64_t kRows = 48, kColumns = 96;
  const std::vector<float> x = weights(kRows * kColumns);
  const std::vector<uint16_t> whole = rounded(x, {.updates = 9});
  for (int64_t columns : {1, 3, 8, 32}) {
    std::vector<uint16_t> joined(x.size());
    for (int64_t first = 0; first < kColumns; first += columns) {
      std::vector<float> shard;
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t column = first; column < first + columns; ++column)
          shard.push_back(x[size_t(row * kColumns + column)]);
      const std::vector<uint16_t> y =
          rounded(shard, {.updates = 9, .run = columns, .stride = kColumns, .offset = first});
      for (size_t i = 0; i < y.size(); ++i)
        joined[i / size_t(columns) * kColumns + size_t(first) + i % size_t(columns)] = y[i];
    }
    EXPECT_EQ(joined, whole) << "shards of " << columns << " columns";
  }
  std::vector<uint16_t> joined;
  for (size_t begin = 0, size = 1; begin < x.size(); begin += size, size = size * 3 % 101) {
    const size_t end = std::min(begin + size, x.size());
    const std::vector<uint16_t> y = rounded(std::vector<float>(x.begin() + long(begin), x.begin() + long(end)),
                                            {.updates = 9, .offset = int64_t(begin)});
    joined.insert(joined.end(), y.begin(), y.end());
  }
  EXPECT_EQ(joined, whole);
}

TEST(StochasticRounding, AnUpdateThatIsNotMadeLeavesTheCopiesAsTheyAre) {
  const std::vector<float> x = weights(1000);
  const std::vector<uint16_t> after = rounded(x, {.updates = 4, .made = true});
  EXPECT_EQ(rounded(x, {.updates = 5, .made = false}), after);
  EXPECT_NE(rounded(x, {.updates = 5, .made = true}), after);
}

TEST(StochasticRounding, KeepsWhatIsNotFinite) {
  for (int update = 0; update < 50; ++update) {
    const std::vector<uint16_t> y = rounded({INFINITY, -INFINITY, NAN, -NAN}, {.updates = update});
    EXPECT_EQ(value_of(y[0]), INFINITY);
    EXPECT_EQ(value_of(y[1]), -INFINITY);
    EXPECT_TRUE(std::isnan(value_of(y[2])) && std::isnan(value_of(y[3])));
  }
}

}  // namespace
}  // namespace keel::ops
