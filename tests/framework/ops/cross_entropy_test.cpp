#include "framework/ops/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/reference/cross_entropy.h"

namespace keel {
namespace {

using namespace testing;

struct Result {
  ops::CrossEntropySums sums;
  Values gradient;  // [n, columns], of factor * objective
};

struct Statistics {
  explicit Statistics(int64_t n)
      : maximum({n}, DType::f32), sum_exp({n}, DType::f32), target_logit({n}, DType::f32), logit_sum({n}, DType::f32) {}
  ops::CrossEntropyStatistics view() const { return {maximum, sum_exp, target_logit, logit_sum}; }
  DeviceTensor maximum, sum_exp, target_logit, logit_sum;
};

void add(const DeviceTensor& to, const DeviceTensor& from) {
  Values sum = to_doubles(to), more = to_doubles(from);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = float(sum[i]) + float(more[i]);
  set_values(to, sum);
}

// The columns cut into `ranks` equal pieces, each with its own call; what ranks exchange is added by hand. The gradient
// is of type `dtype`: an fp32 one in the place of the logits.
Result run(const reference::CrossEntropy& ce, DType dtype, const Values& logits, int64_t ranks, float factor) {
  int64_t n = int64_t(ce.targets.size()), columns = int64_t(ce.columns), own = columns / ranks;
  DeviceTensor targets = device_tensor(ce.targets);
  DeviceTensor all = tensor_of({n, columns}, DType::f32, logits), rounded({n, columns}, DType::bf16);
  const Tensor gradient = dtype == DType::f32 ? all.tensor : rounded.tensor;
  std::vector<Tensor> pieces;
  std::vector<Statistics> statistics;
  Values maximum(size_t(n), -INFINITY);
  ops::CrossEntropyOptions options{int64_t(ce.vocabulary), 0, float(ce.softcap), float(ce.label_smoothing),
                                   float(ce.z_loss)};
  // Pieces of one rank are rows of the whole: strided where there are several.
  for (int64_t rank = 0; rank < ranks; ++rank) {
    pieces.push_back(all.tensor.slice(1, rank * own, (rank + 1) * own));
    statistics.emplace_back(n);
    options.first_column = rank * own;
    ops::cross_entropy_statistics(statistics.back().view(), pieces.back(), targets, options);
    Values own_maximum = to_doubles(statistics.back().maximum);
    for (size_t i = 0; i < maximum.size(); ++i) maximum[i] = std::max(maximum[i], own_maximum[i]);
  }
  Statistics total(n);
  set_values(total.maximum, maximum);
  for (Statistics& piece : statistics) {
    ops::cross_entropy_rescale(piece.view(), total.maximum);
    add(total.sum_exp, piece.sum_exp);
    add(total.target_logit, piece.target_logit);
    add(total.logit_sum, piece.logit_sum);
  }
  const DeviceTensor sums({4}, DType::f64), factors = device_tensor(std::vector<float>{factor});
  ops::cross_entropy_loss(sums, total.view(), targets, options);
  Result result{ops::CrossEntropySums::of(host_values<double>(sums).data()), Values(logits.size())};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    options.first_column = rank * own;
    ops::cross_entropy_gradient(gradient.slice(1, rank * own, (rank + 1) * own),
                                {pieces[size_t(rank)], total.view(), targets, factors, options});
  }
  result.gradient = to_doubles(gradient);
  return result;
}

reference::CrossEntropy random_case(uint64_t seed, int64_t ranks) {
  auto pick = [&](uint64_t i, int64_t low, int64_t high) { return random_integer(seed, i, low, high); };
  reference::CrossEntropy ce;
  ce.vocabulary = size_t(pick(1, 2, pick(2, 0, 4) ? 300 : 9000));
  ce.columns = (ce.vocabulary + size_t(pick(3, 0, 20) + ranks - 1)) / size_t(ranks) * size_t(ranks);
  ce.columns = std::max(ce.columns, (ce.vocabulary + size_t(ranks) - 1) / size_t(ranks) * size_t(ranks));
  if (seed % 4 == 0) {  // every rank has more than 4,096 columns, in rows that wide loads fit, the last of them padding
    ce.columns = size_t(8 * ranks * pick(2, 513, 600));
    ce.vocabulary = ce.columns - size_t(pick(3, 0, 20));
  }
  ce.softcap = pick(4, 0, 2) ? 5 : 0;
  ce.label_smoothing = pick(5, 0, 2) ? 0.1 : 0;
  ce.z_loss = pick(6, 0, 2) ? 1e-2 : 0;
  for (int64_t i = 0, n = pick(7, 1, seed % 4 == 0 ? 5 : 30); i < n; ++i)
    ce.targets.push_back(pick(100 + uint64_t(i), 0, 4) ? int32_t(pick(200 + uint64_t(i), 0, int64_t(ce.vocabulary)))
                                                       : -1);
  return ce;
}

TEST(CrossEntropy, RandomShapesEqualTheReference) {
  for (uint64_t seed = 1; seed <= 24; ++seed)
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t ranks : {1, 3}) {
        reference::CrossEntropy ce = random_case(seed, ranks);
        SCOPED_TRACE(fmt::format("seed {} {} at {}: V {} columns {} cap {} smoothing {} z {}", seed, name_of(dtype),
                                 ranks, ce.vocabulary, ce.columns, ce.softcap, ce.label_smoothing, ce.z_loss));
        int64_t n = int64_t(ce.targets.size());
        DeviceTensor logits = random_tensor({n, int64_t(ce.columns)}, DType::f32, seed, 4);
        Values raw = to_doubles(logits);
        Result got = run(ce, dtype, raw, ranks, 0.25f);
        auto want = reference::cross_entropy(ce, raw);
        int64_t counted = std::count_if(ce.targets.begin(), ce.targets.end(), [](int32_t t) { return t >= 0; });
        EXPECT_NEAR(got.sums.loss, want.loss, 1e-6 * std::max(1.0, want.loss));
        EXPECT_NEAR(got.sums.z_loss, want.z_loss, 2e-6 * std::max(1.0, want.z_loss));
        EXPECT_EQ(got.sums.counted, counted);
        EXPECT_EQ(got.sums.finite, counted);
        Values gradient = scaled(reference::cross_entropy_gradient(ce, raw), 0.25);
        EXPECT_TRUE(near_by_norm(got.gradient, gradient, one_op_tolerance(dtype)));
        for (size_t i = 0; i < raw.size(); ++i)
          if (i % ce.columns >= ce.vocabulary || ce.targets[i / ce.columns] < 0) {
            ASSERT_EQ(got.gradient[i], 0) << i;
          }
      }
}

TEST(CrossEntropy, EqualLogitsGiveTheLogarithmOfTheVocabularyAtEverySplit) {  // CASES R72
  for (double smoothing : {0.0, 0.1})
    for (int64_t ranks : {1, 2, 5}) {
      reference::CrossEntropy ce;
      ce.vocabulary = 5;
      ce.columns = ranks == 2 ? 6 : 5;  // padded to divide
      ce.label_smoothing = smoothing;
      ce.targets = {4};
      Result result = run(ce, DType::f32, Values(ce.columns, 0.0), ranks, 1);
      EXPECT_NEAR(result.sums.loss, 1.60944, 1e-5) << ranks;
      double sum = 0;
      for (size_t i = 0; i < 5; ++i) {
        double target = i == 4 ? 1 - smoothing : 0;
        EXPECT_NEAR(result.gradient[i], 0.2 - target - smoothing / 5, 1e-6) << i;
        sum += result.gradient[i];
      }
      EXPECT_NEAR(sum, 0, 1e-6);
    }
}

TEST(CrossEntropy, SmoothingIsTheSameAtEverySplit) {  // CASES R72
  reference::CrossEntropy ce;
  ce.vocabulary = 5;
  ce.label_smoothing = 0.1;
  ce.targets = {1, 3};
  Values five = {0.5, -1, 2, 0.25, 3, 1, 1, -2, 0, 4};
  ce.columns = 5;
  double whole = run(ce, DType::f32, five, 1, 1).sums.loss;
  EXPECT_NEAR(run(ce, DType::f32, five, 5, 1).sums.loss, whole, 1e-6);
  Values six = {0.5, -1, 2, 0.25, 3, 99, 1, 1, -2, 0, 4, 99};  // padding is not looked at
  ce.columns = 6;
  EXPECT_NEAR(run(ce, DType::f32, six, 2, 1).sums.loss, whole, 1e-6);
}

TEST(CrossEntropy, LargeLogitsStayFinite) {  // CASES R72
  for (DType dtype : {DType::f32, DType::bf16}) {
    const double size = 1e4;
    reference::CrossEntropy ce;
    ce.vocabulary = ce.columns = 20;
    ce.targets = {0, 1};
    Values logits(40, -size);
    logits[0] = logits[20] = size;
    Result result = run(ce, dtype, logits, 2, 1);
    EXPECT_EQ(result.sums.finite, 2);
    EXPECT_NEAR(result.sums.loss, 2 * size, size * 1e-6);
    for (double d : result.gradient) EXPECT_TRUE(std::isfinite(d));
    EXPECT_NEAR(result.gradient[20], 1, 1e-6);
    EXPECT_NEAR(result.gradient[21], -1, 1e-6);
  }
}

// Logits near 1e4 have a spacing of 1e-3 in fp32; the softmax must not inherit it.
TEST(CrossEntropy, SoftmaxIsExactFarFromZero) {
  reference::CrossEntropy ce;
  ce.vocabulary = ce.columns = 3;
  ce.targets = {0};
  Result result = run(ce, DType::f32, {10000, 10001, 9999}, 1, 1);
  double sum = 1 + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(result.sums.loss, std::log(sum), 1e-6);
  EXPECT_NEAR(result.gradient[1], std::exp(1.0) / sum, 1e-6);
}

TEST(CrossEntropy, OverflowIsCountedNotHidden) {
  for (double bad : {std::nan(""), double(INFINITY)})
    for (int64_t ranks : {1, 2}) {
      reference::CrossEntropy ce;
      ce.vocabulary = ce.columns = 12;
      ce.targets = {3, 3, -1};
      Values logits(36, 0.5);
      logits[8] = bad;   // not the target's rank
      logits[30] = bad;  // not counted
      Result result = run(ce, DType::f32, logits, ranks, 1);
      EXPECT_EQ(result.sums.counted, 2);
      EXPECT_EQ(result.sums.finite, 1);
    }
}

TEST(CrossEntropy, MaskedLogitsHaveNoProbability) {
  reference::CrossEntropy ce;
  ce.vocabulary = ce.columns = 4;
  ce.targets = {0};
  Result result = run(ce, DType::f32, {0, 0, -INFINITY, -INFINITY}, 2, 1);
  EXPECT_NEAR(result.sums.loss, std::log(2.0), 1e-6);
  EXPECT_EQ(result.gradient[2], 0);
}

// Soft-cap to a few units in the last place, small logits included.
TEST(CrossEntropy, SoftCapKeepsSmallLogits) {
  Statistics statistics(1);
  Values logits;
  for (int i = 0; i < 4001; ++i) logits.push_back(float(-200 + 0.1 * i));
  for (double small : {1e-6, 1e-3, -1e-3, 0.02}) logits.push_back(float(small));
  DeviceTensor x = tensor_of({1, int64_t(logits.size())}, DType::f32, logits);
  DeviceTensor target = device_tensor<int32_t>({0});
  ops::cross_entropy_statistics(statistics.view(), x, target, {int64_t(logits.size()), 0, 30, 0, 0});
  Values capped = to_doubles(x);
  for (size_t i = 0; i < logits.size(); ++i) {
    double want = 30 * std::tanh(logits[i] / 30);
    EXPECT_NEAR(capped[i], want, 6 * 0x1p-23 * std::abs(want)) << logits[i];
  }
}

TEST(CrossEntropy, ARankOfPaddingOnlyAddsNothing) {
  reference::CrossEntropy ce;
  ce.vocabulary = 4;
  ce.columns = 12;
  ce.targets = {2};
  Values logits(12, 7.0);
  Result result = run(ce, DType::f32, logits, 3, 1);
  EXPECT_NEAR(result.sums.loss, std::log(4.0), 1e-6);
  EXPECT_EQ(result.sums.finite, 1);
  for (size_t i = 4; i < 12; ++i) EXPECT_EQ(result.gradient[i], 0);
}

TEST(CrossEntropyReference, GradientsAreFiniteDifferences) {
  for (double cap : {0.0, 3.0})
    for (double smoothing : {0.0, 0.2})
      for (double z : {0.0, 0.1}) {
        reference::CrossEntropy ce{7, 6, cap, smoothing, z, {3, -1, 0}};
        Values logits = random_values(21, 5, 2);
        auto objective = [&](const Values& at) {
          auto loss = reference::cross_entropy(ce, at);
          return loss.loss + loss.z_loss;
        };
        EXPECT_TRUE(
            near_by_norm(reference::cross_entropy_gradient(ce, logits), finite_differences(logits, objective), 1e-8));
      }
}

TEST(CrossEntropy, TolerancesRefusePlantedMistakes) {
  reference::CrossEntropy ce = random_case(3, 1);
  ce.softcap = 5;
  ce.label_smoothing = 0.1;
  ce.z_loss = 1e-2;
  Values logits = to_doubles(random_tensor({int64_t(ce.targets.size()), int64_t(ce.columns)}, DType::f32, 3, 4));
  Values gradient = run(ce, DType::f32, logits, 1, 1).gradient;
  EXPECT_TRUE(near_by_norm(gradient, reference::cross_entropy_gradient(ce, logits), kFloat32));
  for (double reference::CrossEntropy::*member :
       {&reference::CrossEntropy::softcap, &reference::CrossEntropy::label_smoothing,
        &reference::CrossEntropy::z_loss}) {
    reference::CrossEntropy wrong = ce;
    wrong.*member = 0;
    EXPECT_TRUE(fails(near_by_norm(gradient, reference::cross_entropy_gradient(wrong, logits), kFloat32)));
  }
}

TEST(CrossEntropy, RefusesTokensBeyondTheVocabulary) {
  Statistics statistics(2);
  OwnedTensor logits({2, 8}, DType::f32);
  std::vector<int32_t> targets = {3, 8};
  try {
    ops::cross_entropy_statistics(statistics.view(), logits, ConstTensor(targets.data(), {2}, DType::i32), {8});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("token 8, but the model's vocabulary ends at 7"));
  }
}

}  // namespace
}  // namespace keel
