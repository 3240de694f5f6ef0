#include "launch/common/environment.h"

#include <gmock/gmock.h>

namespace keel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Environment, HostsMayBeOthersButNotTheRanksOnThem) {
  EXPECT_THAT(ranks_per_host({"a", "a", "a", "b"}), ElementsAre(3, 1));
  EXPECT_THAT(ranks_per_host({"a", "b", "a", "c"}), ElementsAre(2, 1, 1));
  const std::string eight = R"({"hosts": ["a", "a"], "ranks_per_host": [8], "threads": 2})",
                    moved = R"({"hosts": ["b", "b"], "ranks_per_host": [8], "threads": 2})",
                    spread = R"({"hosts": ["a", "b"], "ranks_per_host": [4, 4], "threads": 2})",
                    older = R"({"hosts": ["a", "a"], "threads": 1})";
  EXPECT_THAT(environment_changes(eight, moved), IsEmpty());
  EXPECT_THAT(environment_changes(eight, spread), ElementsAre("ranks_per_host: [8] -> [4,4]"));
  EXPECT_THAT(environment_changes(older, spread), ElementsAre("threads: 1 -> 2"));
}

}  // namespace
}  // namespace keel
