// Which GPU each rank takes, and where one has none to itself.
#include "framework/comm/gpu_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace keel::comm {
namespace {

// Ranks in host order that see GPUs of a host by physical number.
struct Host {
  std::vector<std::vector<uint64_t>> seen_by_rank;
};

std::vector<RankGpus> ranks_of(const std::vector<Host>& hosts) {
  std::vector<RankGpus> ranks;
  for (uint64_t host = 0; host < hosts.size(); ++host) {
    const auto& seen_by_rank = hosts[host].seen_by_rank;
    for (int64_t local = 0; local < int64_t(seen_by_rank.size()); ++local) {
      const auto& seen = seen_by_rank[size_t(local)];
      RankGpus rank{host, local, int64_t(seen_by_rank.size()), int64_t(seen.size())};
      if (!seen.empty()) rank.first = {1, seen[0]};
      if (local < rank.visible) rank.with_number = {1, seen[size_t(local)]};
      ranks.push_back(rank);
    }
  }
  return ranks;
}

bool all_fine(const std::vector<Host>& hosts) {
  return !find_gpu_conflict(ranks_of(hosts));
}

TEST(GpuChoice, TheRankWithinTheHostOrTheOnlyOneThatIsVisible) {
  using Indices = std::vector<int64_t>;
  EXPECT_EQ(gpu_indices(ranks_of({{{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}}})), (Indices{0, 1, 2}));
  EXPECT_EQ(gpu_indices(ranks_of({{{{0, 1}, {0, 1}, {2}}}})), (Indices{0, 1, 0}));
  EXPECT_TRUE(all_fine({{{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}}}));
  EXPECT_TRUE(all_fine({{{{0}, {1}, {2}}}})) << "a launcher that left each rank one";
  EXPECT_TRUE(all_fine({{{{0, 1}, {1, 2}}}}));
}

// srun --gpus-per-task=2.
TEST(GpuChoice, RanksWithSeveralGpusOfTheirOwnTakeTheFirst) {
  const std::vector<RankGpus> ranks = ranks_of({{{{0, 1}, {2, 3}, {4, 5}}}, {{{0, 1}, {0, 1}}}});
  EXPECT_EQ(gpu_indices(ranks), (std::vector<int64_t>{0, 0, 0, 0, 1}));
  EXPECT_FALSE(find_gpu_conflict(ranks));
  EXPECT_TRUE(all_fine({{{{0, 1}, {2, 0}}}}));
}

TEST(GpuChoice, HostsCountForThemselves) {
  EXPECT_TRUE(all_fine({{{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}}, {{{0}}}})) << "3 + 1 ranks";
  const auto conflict = find_gpu_conflict(ranks_of({{{{0, 1}, {0, 1}}}, {{{0}, {0}}}}));
  ASSERT_TRUE(conflict);
  EXPECT_EQ(conflict->rank, 3);
  EXPECT_EQ(conflict->other, 2);
}

TEST(GpuChoice, TooFewAndSharedAreFound) {
  const auto none = find_gpu_conflict(ranks_of({{{{}}}}));
  ASSERT_TRUE(none);
  EXPECT_EQ(none->other, -1);
  const auto few = find_gpu_conflict(ranks_of({{{{0, 1}, {0, 1}, {0, 1}}}}));
  ASSERT_TRUE(few);
  EXPECT_EQ(few->rank, 2);
  EXPECT_EQ(few->other, -1);
  const auto renamed = find_gpu_conflict(ranks_of({{{{0, 1}, {0, 2}, {3, 4, 2}}}}));
  ASSERT_TRUE(renamed) << "number 2 of the third rank is number 1 of the second";
  EXPECT_EQ(renamed->other, 1);
}

}  // namespace
}  // namespace keel::comm
