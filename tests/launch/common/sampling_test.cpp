#include "launch/common/sampling.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace keel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// How often each id is drawn, over seeds and places.
std::vector<double> shares(const std::vector<float>& logits, Sampling sampling) {
  constexpr int kDraws = 20000;
  std::vector<double> shares(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    sampling.seed = uint64_t(i / 10);
    shares[size_t(draw(logits, sampling, i % 10))] += 1.0 / kDraws;
  }
  return shares;
}

void expect_near(const std::vector<double>& shares, const std::vector<double>& expected) {
  ASSERT_EQ(shares.size(), expected.size());
  for (size_t i = 0; i < shares.size(); ++i)  // 0.014 is four standard deviations at a half
    EXPECT_NEAR(shares[i], expected[i], expected[i] == 0 ? 0 : 0.014) << "id " << i;
}

TEST(Sampling, IdsComeAsOftenAsTheSoftmaxSays) {
  const std::vector<float> logits = {std::log(2.f), 0, std::log(3.f), std::log(4.f)};
  expect_near(shares(logits, {.temperature = 1, .top = 4}), {0.2, 0.1, 0.3, 0.4});
  expect_near(shares(logits, {.temperature = 1, .top = 100}), {0.2, 0.1, 0.3, 0.4});
  expect_near(shares(logits, {.temperature = 0.5, .top = 4}), {4 / 30.0, 1 / 30.0, 9 / 30.0, 16 / 30.0});
  expect_near(shares(logits, {.temperature = 1, .top = 2}), {0, 0, 3 / 7.0, 4 / 7.0});
  expect_near(shares(logits, {.temperature = 1, .top = 3}), {2 / 9.0, 0, 3 / 9.0, 4 / 9.0});
}

TEST(Sampling, TheLikeliestIsTakenWithoutAChoice) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> logits(40);
  for (int i = 0; i < 200; ++i) {
    for (float& logit : logits) logit = normal(random);
    const auto likeliest = int32_t(std::ranges::max_element(logits) - logits.begin());
    EXPECT_EQ(draw(logits, {.temperature = 1, .top = 1, .seed = uint64_t(i)}, i), likeliest);
    EXPECT_EQ(draw(logits, {.temperature = 0, .top = 50, .seed = uint64_t(i)}, i), likeliest);
  }
  EXPECT_EQ(draw(std::vector<float>{1, 2, 2, 2}, {.temperature = 0}, 0), 1) << "the first of equal ones";
}

TEST(Sampling, ADrawIsAFunctionOfSeedAndPlace) {
  const std::vector<float> logits(1000, 0);
  const Sampling one{.temperature = 1, .top = 1000, .seed = 1}, two{.temperature = 1, .top = 1000, .seed = 2};
  EXPECT_EQ(draw(logits, one, 5), draw(logits, one, 5));
  EXPECT_NE(draw(logits, one, 5), draw(logits, one, 6));
  EXPECT_NE(draw(logits, one, 5), draw(logits, two, 5));
}

TEST(Sampling, LogitsThatAreNotFiniteAreRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    const std::vector<float> logits = {1, 2, bad, 3};
    std::string message;
    try {
      draw(logits, {}, 0);
    } catch (const LogitsNotFinite& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr(fmt::format("id 2 a logit of {}", bad)));
  }
}

TEST(Sampling, ALongContextKeepsItsFirstId) {
  const std::vector<int32_t> ids = {1, 20, 30, 40, 50};
  EXPECT_EQ(visible_ids(ids, 5, 1), ids);
  EXPECT_THAT(visible_ids(ids, 3, 1), ElementsAre(1, 40, 50));
  EXPECT_THAT(visible_ids(ids, 3, std::nullopt), ElementsAre(30, 40, 50));
  EXPECT_THAT(visible_ids(ids, 1, 1), ElementsAre(50));
}

}  // namespace
}  // namespace keel
