#include "framework/ops/elementwise.h"

#include <omp.h>

#include <numeric>

#include "framework/ops/matmul/normal_values.h"
#include "tests/support/compare.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

const std::vector<int64_t> kSizes{0,  1,  2,  3,  7,   8,   9,    15,   16,   17,    31,    33,
                                  63, 64, 65, 99, 127, 255, 1000, 4097, 9999, 40000, 65537, 100003};

TEST(Convert, EqualsTheScalarRoundingBitForBit) {
  for (int64_t n : kSizes) {
    DeviceTensor x = random_tensor({n}, DType::f32, uint64_t(n) + 1), y({n}, DType::bf16), back({n}, DType::f32);
    convert(y, x);
    EXPECT_TRUE(same_bits(y, tensor_of({n}, DType::bf16, to_doubles(x)))) << n;
    convert(back, y);
    EXPECT_EQ(to_doubles(back), to_doubles(y)) << n;
  }
}

TEST(Convert, RoundsTiesToEvenAndKeepsTheExtremes) {
  // bf16 keeps 8 bits: 1 + 1/256 lies halfway between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
  Values in{1 + 1.0 / 256, 1 + 3.0 / 256, 1 + 1.0 / 256 + 1.0 / 65536, -1 - 1.0 / 256, 0, -0.0, INFINITY, -INFINITY,
            3.4028234e38,  1e-40};
  Values out{1, 1 + 1.0 / 64, 1 + 1.0 / 128, -1, 0, -0.0, INFINITY, -INFINITY, INFINITY};
  DeviceTensor x = tensor_of({10}, DType::f32, in), y({10}, DType::bf16);
  convert(y, x);
  Values got = to_doubles(y);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(got[i], out[i]) << i;
  EXPECT_TRUE(std::signbit(got[5]));
  EXPECT_NEAR(got[9], 1e-40, 1e-42 * 50);  // below the normal range, still no 0
  DeviceTensor nan = tensor_of({1}, DType::f32, {std::nan("")});
  convert(y.tensor.slice(0, 0, 1), nan);
  EXPECT_TRUE(std::isnan(to_doubles(y)[0]));
}

TEST(Convert, FollowsStridedRows) {
  DeviceTensor x = random_tensor({40, 21}, DType::f32, 1), y = random_tensor({40, 30}, DType::bf16, 2);
  Values margin = to_doubles(y.tensor.slice(1, 11, 30));
  convert(y.tensor.slice(1, 0, 11), x.tensor.slice(1, 5, 16));
  DeviceTensor expected({40, 11}, DType::bf16);
  set_values(expected, to_doubles(x.tensor.slice(1, 5, 16)));
  EXPECT_TRUE(same_bits(y.tensor.slice(1, 0, 11), expected));
  EXPECT_EQ(to_doubles(y.tensor.slice(1, 11, 30)), margin);
}

TEST(Add, SumsInFp32AndRoundsOnce) {
  DType both[] = {DType::f32, DType::bf16};
  for (int64_t n : kSizes)
    for (DType of_y : both)
      for (DType of_a : both)
        for (DType of_b : both) {
          DeviceTensor a = random_tensor({n}, of_a, 1), b = random_tensor({n}, of_b, 2, 100), y({n}, of_y);
          add(y, a, b);
          Values expected = to_doubles(a), more = to_doubles(b);
          for (size_t i = 0; i < expected.size(); ++i) expected[i] = float(expected[i]) + float(more[i]);
          EXPECT_TRUE(same_bits(y, tensor_of({n}, of_y, expected))) << n;
        }
}

TEST(Add, MayOverwriteAnArgument) {
  DeviceTensor a = random_tensor({1000}, DType::f32, 1), b = random_tensor({1000}, DType::bf16, 2),
               y({1000}, DType::f32);
  add(y, a, b);
  add(a, a, b);
  EXPECT_TRUE(same_bits(a, y));
}

TEST(FillAndScale, EveryElementAndNoOther) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t n : kSizes) {
      DeviceTensor whole = random_tensor({n + 20}, dtype, 1);
      Tensor middle = whole.tensor.slice(0, 10, n + 10);
      Values before = to_doubles(whole), expected = before;
      scale(middle, -0.5f);
      for (int64_t i = 10; i < n + 10; ++i) expected[size_t(i)] *= -0.5;  // exact in either type
      EXPECT_EQ(to_doubles(whole), expected) << n;
      fill(middle, 1.5f);
      std::fill(expected.begin() + 10, expected.begin() + 10 + n, 1.5);
      EXPECT_EQ(to_doubles(whole), expected) << n;
    }
}

// Every element of n, by its ends and by the sum of all squares.
void expect_all_of(int64_t n) {
  const DeviceTensor y({n}, DType::bf16), total({1}, DType::f64);
  fill(y, 1.5f);
  scale(y, -0.5f);
  add_sum_of_squares(total, y);
  EXPECT_NEAR(host_values<double>(total)[0], double(n) * 0.5625, 1e-6 * double(n));
  for (int64_t begin : {int64_t(0), n / 2, n - 100})
    EXPECT_EQ(to_doubles(y.tensor.slice(0, begin, begin + 100)), Values(100, -0.75)) << begin;
}

TEST(FillAndScale, MoreElementsThan32BitsCount) {
  expect_all_of(5000);
  if (!on_hardware()) GTEST_SKIP() << "takes 4 GiB of memory: on GPUs only";
  expect_all_of((int64_t(1) << 31) + 333);
  expect_all_of((int64_t(1) << 32) + 77);
}

double sum_of_squares(const ConstTensor& x) {
  const DeviceTensor total({1}, DType::f64);
  add_sum_of_squares(total, x);
  return host_values<double>(total)[0];
}

TEST(Sums, AreExactToDouble) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t n : kSizes) {
      DeviceTensor x = random_tensor({n}, dtype, uint64_t(n) + 3, 1, 0.3);
      long double squares = 0;
      for (double value : to_doubles(x)) squares += (long double)value * value;
      EXPECT_NEAR(sum_of_squares(x), double(squares), 1e-12 * double(squares) + 1e-15) << n;
    }
}

TEST(Sums, NeitherOverflowNorVanishInFp32) {
  EXPECT_NEAR(sum_of_squares(tensor_of({5}, DType::f32, Values(5, 1e30))) / 5e60, 1, 1e-6);
  EXPECT_NEAR(sum_of_squares(tensor_of({5}, DType::f32, Values(5, 1e-30))) / 5e-60, 1, 1e-6);
  // In fp32, 2^24 + 1 = 2^24.
  Values ones(100000, 1.0);
  ones[0] = 4096;
  EXPECT_EQ(sum_of_squares(tensor_of({100000}, DType::f32, ones)), 16777216 + 99999);
}

TEST(Sums, ShowNonFiniteValuesWhereverTheyStand) {
  for (int64_t n : {1, 9, 5000})
    for (int64_t at : {int64_t(0), n / 2, n - 1}) {
      DeviceTensor x = random_tensor({n}, DType::f32, 1);
      set_element(x, at, INFINITY);
      EXPECT_TRUE(std::isinf(sum_of_squares(x)));
      set_element(x, at, NAN);
      EXPECT_TRUE(std::isnan(sum_of_squares(x)));
    }
}

TEST(Sums, AreAddedToWhatIsThere) {
  const DeviceTensor total({1}, DType::f64);
  set_element(total, 0, 3.0);
  add_sum_of_squares(total, tensor_of({2}, DType::f32, {1, 2}));
  EXPECT_EQ(host_values<double>(total)[0], 8);
}

TEST(Sums, DoNotDependOnThreads) {
  DeviceTensor x = random_tensor({200003}, DType::f32, 1);
  int threads = omp_get_max_threads();
  std::vector<double> squares;
  for (int count : {1, 2, 3, 7}) {
    omp_set_num_threads(count);
    squares.push_back(sum_of_squares(x));
  }
  omp_set_num_threads(threads);
  EXPECT_EQ(std::count(squares.begin(), squares.end(), squares[0]), 4);
}

TEST(OutOfRange, CountsWhatBf16CannotTell) {
  const float largest = kLargestBf16, least = kLeastNormalBf16;
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t n : {7, 100, 40001}) {
      Values values(size_t(n), 1.5);
      const double special[] = {-largest, INFINITY, -INFINITY, 0, least / 2, NAN, -least};
      std::copy(std::begin(special), std::end(special), values.end() - 7);
      const DeviceTensor x = tensor_of({n}, dtype, values), counts = device_tensor(std::vector<double>{10, 20});
      add_out_of_range(counts, x);
      EXPECT_EQ(host_values<double>(counts), (std::vector<double>{13, 22})) << name_of(dtype) << " " << n;
    }
  // fp32 values that bf16 has not, on both sides of the limits.
  const Values near = {std::nextafter(largest, 0.f), std::nextafter(largest, HUGE_VALF), std::nextafter(least, 0.f)};
  const DeviceTensor counts({2}, DType::f64);
  add_out_of_range(counts, tensor_of({3}, DType::f32, near));
  EXPECT_EQ(host_values<double>(counts), (std::vector<double>{1, 1}));
}

TEST(Elementwise, ErrorsNameBothValues) {
  DeviceTensor a({3}, DType::f32), b({4}, DType::f32), matrix({4, 6}, DType::f32);
  auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(message([&] { convert(a, b); }), ::testing::HasSubstr("[3] from [4]"));
  EXPECT_THAT(message([&] { add(a, a, b); }), ::testing::HasSubstr("[3] and [4]"));
  EXPECT_THAT(message([&] { fill(matrix.tensor.slice(1, 0, 3), 1); }), ::testing::HasSubstr("not contiguous"));
  EXPECT_THAT(message([&] { sum_of_squares(DeviceTensor({3}, DType::i32)); }), ::testing::HasSubstr("int32"));
}

TEST(Elementwise, MetaDeviceRunsNothing) {
  OwnedTensor x({100}, DType::f32, Device{DeviceKind::meta}), y({100}, DType::bf16, Device{DeviceKind::meta});
  convert(y, x);
  fill(x, 1);
  scale(x, 1);
  add_sum_of_squares(Tensor(nullptr, {1}, DType::f64, Device{DeviceKind::meta}), x);
}

TEST(FillNormal, IsAFunctionOfTheSeedAndNormal) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const DeviceTensor x({300, 250}, dtype), again({300, 250}, dtype), other({300, 250}, dtype);
    ops::fill_normal(x, 1);
    ops::fill_normal(again, 1);
    ops::fill_normal(other, 2);
    EXPECT_TRUE(same_bits(x, again));
    EXPECT_FALSE(same_bits(x, other));
    double sum = 0, squares = 0;
    for (double value : to_doubles(x)) sum += value, squares += value * value;
    EXPECT_NEAR(sum / 75000, 0, 0.02);
    EXPECT_NEAR(squares / 75000, 1, 0.03);
  }
}

}  // namespace
}  // namespace keel::ops
