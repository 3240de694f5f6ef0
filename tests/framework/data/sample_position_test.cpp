#include "framework/data/sample_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "framework/base/error.h"
#include "framework/data/sampler.h"

namespace keel::data {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> take(SamplePosition& position, int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  position.take(indices);
  return indices;
}

SampleOrder ten_samples() {
  return SampleOrder(42, std::vector{SampleSet{{10}}});
}

TEST(SamplePosition, StepsTakeConsecutiveSamples) {
  SamplePosition position;
  EXPECT_THAT(take(position, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(take(position, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(take(position, 2), ElementsAre(6, 7));  // another batch size
  EXPECT_EQ(position.consumed(), 8);
  EXPECT_EQ(position.next(), 8);
}

TEST(SamplePosition, LeavesOutWhatARollbackNames) {
  SamplePosition position;
  take(position, 4);
  position.leave_out({6, 8});
  position.leave_out({10, 11});
  EXPECT_THAT(take(position, 4), ElementsAre(4, 5, 8, 9));
  EXPECT_EQ(position.consumed(), 8);
  EXPECT_THAT(take(position, 2), ElementsAre(11, 12));
  EXPECT_EQ(position.consumed(), 10);
  EXPECT_THROW(position.leave_out({12, 14}), Error);  // taken already
  EXPECT_THROW(position.leave_out({14, 14}), Error);
}

TEST(SamplePosition, MergesRanges) {
  SamplePosition position;
  position.leave_out({10, 12});
  position.leave_out({4, 6});
  position.leave_out({6, 7});
  EXPECT_THAT(position.left_out(), ElementsAre(SampleRange{4, 7}, SampleRange{10, 12}));
  position.leave_out({5, 11});
  EXPECT_THAT(position.left_out(), ElementsAre(SampleRange{4, 12}));
}

TEST(SamplePosition, EqualsAPlainListAfterRandomRollbacks) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    SamplePosition position;
    std::set<int64_t> gone;
    int64_t expected = 0;
    for (int step = 0; step < 30; ++step) {
      if (random() % 3 == 0) {
        const int64_t begin = position.next() + int64_t(random() % 8), end = begin + 1 + int64_t(random() % 6);
        position.leave_out({begin, end});
        for (int64_t i = begin; i < end; ++i) gone.insert(i);
      }
      for (int64_t index : take(position, 1 + int64_t(random() % 5))) {
        while (gone.contains(expected)) ++expected;
        ASSERT_EQ(index, expected++);
      }
      position = SamplePosition::from_numbers(position.to_numbers());
    }
  }
}

TEST(SamplePosition, RefusesDamagedNumbers) {
  using Numbers = std::vector<int64_t>;
  for (const Numbers& numbers :
       {Numbers{}, {-1}, {0, 1}, {0, 2, 2}, {0, 3, 2}, {0, 1, 3, 3, 5}, {0, 5, 6, 1, 2}, {0, -3, 2}})
    EXPECT_THROW(SamplePosition::from_numbers(numbers), Error) << numbers.size();
  SamplePosition position;
  take(position, 5);
  position.leave_out({7, 9});
  EXPECT_THAT(position.to_numbers(), ElementsAre(5, 7, 9));
  EXPECT_EQ(SamplePosition::from_numbers(position.to_numbers()), position);
}

// 10 samples, batch 2, 3 epochs, a checkpoint after each of the 15 steps.
TEST(Resume, FromEveryCheckpointTheOrderIsTheUninterruptedOne) {  // CASES R29
  auto run = [](SamplePosition position, int64_t steps) {
    const SampleOrder order = ten_samples();  // built again by every process
    std::vector<int64_t> samples;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t g : take(position, 2)) samples.push_back(order(g).sample);
    return std::pair(samples, position);
  };
  const auto [uninterrupted, end] = run({}, 15);
  std::map<int64_t, int> times;
  for (int64_t sample : uninterrupted) ++times[sample];
  for (int64_t sample = 0; sample < 10; ++sample) EXPECT_EQ(times[sample], 3);
  for (int64_t stop = 0; stop <= 15; ++stop) {
    auto [samples, position] = run({}, stop);
    const auto stored = position.to_numbers();
    auto rest = run(SamplePosition::from_numbers(stored), 15 - stop).first;
    samples.insert(samples.end(), rest.begin(), rest.end());
    EXPECT_EQ(samples, uninterrupted) << "resumed after step " << stop;
  }
}

TEST(Resume, MidEpochYieldsTheUnseenAndThenWholeEpochs) {  // CASES R27
  const SampleOrder order = ten_samples();
  SamplePosition position;
  std::set<int64_t> unseen, epoch_one;
  for (int64_t i = 0; i < 10; ++i) unseen.insert(i);
  for (int64_t g : take(position, 6)) unseen.erase(order(g).sample);
  position = SamplePosition::from_numbers(position.to_numbers());
  for (int64_t g : take(position, 4)) EXPECT_EQ(unseen.erase(order(g).sample), 1u);
  EXPECT_TRUE(unseen.empty());
  for (int64_t g : take(position, 10)) epoch_one.insert(order(g).sample);
  EXPECT_EQ(epoch_one.size(), 10u);
}

}  // namespace
}  // namespace keel::data
