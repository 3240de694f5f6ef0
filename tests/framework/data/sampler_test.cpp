#include "framework/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "framework/base/error.h"

namespace keel::data {
namespace {

using ::testing::HasSubstr;

std::vector<double> one = {1.0};

SampleOrder order_of(uint64_t seed, const std::vector<SampleSet>& sets) {
  return SampleOrder(seed, sets);
}

std::vector<int64_t> samples_of(const SampleOrder& order, int64_t begin, int64_t end) {
  std::vector<int64_t> samples;
  for (int64_t g = begin; g < end; ++g) samples.push_back(order(g).sample);
  return samples;
}

TEST(WholeSamples, CountsPastTwoToThe31) {  // CASES R51
  EXPECT_EQ(whole_samples(3'000'000'000, 1024), 2929687);
  EXPECT_EQ((whole_samples(3'000'000'000, 1024) - 1) * 1024, 2999998464);
  EXPECT_EQ(whole_samples(0, 4), 0);
  EXPECT_EQ(whole_samples(4, 4), 0);  // no token left to be the last target
  EXPECT_EQ(whole_samples(5, 4), 1);
  EXPECT_EQ(whole_samples(9, 4), 2);
  EXPECT_EQ(whole_samples(8, 4), 1);
}

TEST(SampleOrder, AnEpochIsEachSampleOnceAndEpochsDiffer) {  // CASES R52
  const SampleOrder order = order_of(7, {SampleSet{{10}}});
  std::set<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> samples = samples_of(order, epoch * 10, epoch * 10 + 10);
    for (int64_t g = epoch * 10; g < epoch * 10 + 10; ++g) EXPECT_EQ(order(g).epoch, epoch);
    epochs.insert(samples);
    std::sort(samples.begin(), samples.end());
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(samples[size_t(i)], i);
  }
  EXPECT_EQ(epochs.size(), 3u);
  EXPECT_EQ(samples_of(order, 0, 30), samples_of(order_of(7, {SampleSet{{10}}}), 0, 30));
  EXPECT_NE(samples_of(order, 0, 10), samples_of(order_of(8, {SampleSet{{10}}}), 0, 10));
}

// From an independent implementation in Python. A later build must continue the runs of an earlier one in this order.
TEST(SampleOrder, StaysWhatItWas) {
  EXPECT_EQ(samples_of(order_of(1, {SampleSet{{10}}}), 0, 20),
            (std::vector<int64_t>{4, 0, 6, 2, 7, 8, 9, 1, 5, 3, 2, 0, 7, 3, 9, 4, 6, 1, 5, 8}));
}

TEST(SampleOrder, HugeSourcesNeedNoMemory) {
  const int64_t samples = int64_t(1) << 40;
  const SampleOrder order = order_of(3, {SampleSet{{samples}}});
  std::set<int64_t> seen;
  for (int64_t g = samples - 500; g < samples + 500; ++g) {
    const SampleId id = order(g);
    EXPECT_EQ(id.epoch, g >= samples);
    EXPECT_TRUE(id.sample >= 0 && id.sample < samples);
    seen.insert(id.sample);
  }
  EXPECT_GT(seen.size(), 998u);
}

TEST(Interleaving, TracksTheWeightsToWithinOneSampleAtEveryPrefix) {
  std::mt19937 random(5);
  std::vector<std::vector<double>> cases = {
      {1},          {1, 1},       {0.7, 0.3},   {0.7, 0.2, 0.1},          {3, 1}, {1, 2, 4}, {5, 5, 5, 1, 1},
      {0.99, 0.01}, {1e-3, 1, 1}, {1, 1, 1, 7}, {0.5, 0.25, 0.125, 0.125}};
  for (int i = 0; i < 20; ++i) {
    std::vector<double> weights(2 + random() % 8);
    for (double& weight : weights) weight = 1 + random() % 50;
    cases.push_back(weights);
  }
  for (const auto& weights : cases) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Interleaving interleaving(weights);
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t g = 0; g < 3 * interleaving.period() + 5; ++g) {
      const auto [source, index] = interleaving(g);
      ASSERT_EQ(index, counts[size_t(source)]++);
      for (size_t s = 0; s < weights.size(); ++s)
        ASSERT_LT(std::abs(double(counts[s]) - weights[s] / total * double(g + 1)), 1 + 1e-9)
            << "source " << s << " after " << g + 1;
    }
  }
}

TEST(Interleaving, FindsShortPeriodsAndRoundsOtherWeights) {
  EXPECT_EQ(Interleaving(std::vector<double>{0.7, 0.3}).period(), 10);
  EXPECT_EQ(Interleaving(std::vector<double>{70, 30}).period(), 10);
  EXPECT_EQ(Interleaving(std::vector<double>{1. / 3, 1. / 3, 1. / 3}).period(), 3);
  EXPECT_EQ(Interleaving(one).period(), 1);
  const Interleaving odd(std::vector<double>{std::sqrt(2.0), std::sqrt(3.0), 1e-3});
  EXPECT_EQ(odd.period(), 65536);
  EXPECT_EQ(odd.share(0) + odd.share(1) + odd.share(2), 65536);
  EXPECT_NEAR(double(odd.share(0)) / 65536, std::sqrt(2.0) / (std::sqrt(2.0) + std::sqrt(3.0) + 1e-3), 1.0 / 65536);
  for (double bad : {0.0, -1.0, std::nan(""), double(INFINITY)})
    EXPECT_THROW(Interleaving(std::vector<double>{1, bad}), Error) << bad;
  EXPECT_THROW(Interleaving(std::vector<double>{1, 1e-6}), Error);
}

// A small last shard is not repeated.
TEST(SampleOrder, AnEpochOfASetIsEachSampleOfAllItsSourcesOnce) {
  const SampleOrder order = order_of(5, {SampleSet{{50, 0, 3, 40}}});
  std::set<std::vector<int>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::pair<int, int64_t>> seen;
    std::vector<int> sources;
    for (int64_t g = 93 * epoch; g < 93 * (epoch + 1); ++g) {
      const SampleId id = order(g);
      EXPECT_EQ(id.epoch, epoch);
      EXPECT_TRUE(id.sample >= 0 && id.sample < std::vector<int64_t>({50, 0, 3, 40})[size_t(id.source)]);
      EXPECT_TRUE(seen.emplace(id.source, id.sample).second);
      sources.push_back(id.source);
    }
    epochs.insert(sources);
  }
  EXPECT_EQ(epochs.size(), 3u);
}

TEST(SampleOrder, WeightsAreOfWholeSets) {
  const SampleOrder order = order_of(5, {SampleSet{{2, 6}, 3}, SampleSet{{100}, 1}});
  std::vector<int> counts(3);
  for (int64_t g = 0; g < 320; ++g) ++counts[size_t(order(g).source)];
  EXPECT_EQ(counts, (std::vector<int>{60, 180, 80}));
}

TEST(SampleOrder, EachSetHasEpochsOfItsOwn) {
  const SampleOrder order = order_of(11, {SampleSet{{4}}, SampleSet{{100}}});
  std::vector<std::vector<SampleId>> taken(2);
  for (int64_t g = 0; g < 200; ++g) taken[size_t(order(g).source)].push_back(order(g));
  ASSERT_EQ(taken[0].size(), 100u);
  for (int64_t epoch = 0; epoch < 25; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(taken[0][size_t(epoch * 4 + i)].epoch, epoch);
      seen.insert(taken[0][size_t(epoch * 4 + i)].sample);
    }
    EXPECT_EQ(seen.size(), 4u);
  }
  std::set<int64_t> seen;
  for (const SampleId& id : taken[1]) seen.insert(id.sample);
  EXPECT_EQ(seen.size(), 100u);
  // Two sources of one size must not be shuffled alike.
  const SampleOrder twins = order_of(11, {SampleSet{{100}}, SampleSet{{100}}});
  int alike = 0;
  for (int64_t g = 0; g < 200; g += 2) alike += twins(g).sample == twins(g + 1).sample;
  EXPECT_LT(alike, 10);
}

TEST(ValidationOrder, EverySampleOnceInOrderAndTheSameStepsOnEveryRank) {
  // 9 tokens at T 4: samples at 0, 4 (whole). 11 tokens: 0, 4, 8 (2 targets). 1 token: none.
  const ValidationOrder order(std::vector<int64_t>{9, 1, 11}, 4);
  EXPECT_EQ(order.samples(), 5);
  const std::vector<SampleId> all = {{0, 0, 0}, {0, 0, 1}, {2, 0, 0}, {2, 0, 1}, {2, 0, 2}};
  for (int ranks : {1, 2, 4}) {
    std::vector<SampleId> seen;
    for (int64_t step = 0; step < 2; ++step) {
      std::vector<SampleId> rows(4);
      for (size_t i = 0; i < 4; ++i) rows[i] = order(4 * step + int64_t(i));
      for (int rank = 0; rank < ranks; ++rank)
        for (const SampleId& id : slice_of_rank(std::span(rows), rank, ranks))
          if (id.source >= 0) seen.push_back(id);
    }
    EXPECT_EQ(seen, all);
  }
  EXPECT_EQ(ValidationOrder(std::vector<int64_t>{0, 1}, 4).samples(), 0);
}

}  // namespace
}  // namespace keel::data
