#include "launch/common/sampling.h"

#include <gmock/gmock.h>

namespace keel {
namespace {

using ::testing::ElementsAre;

TEST(Sampling, ALongContextKeepsItsFirstId) {
  const std::vector<int32_t> ids = {1, 20, 30, 40, 50};
  EXPECT_EQ(visible_ids(ids, 5, 1), ids);
  EXPECT_THAT(visible_ids(ids, 3, 1), ElementsAre(1, 40, 50));
  EXPECT_THAT(visible_ids(ids, 3, std::nullopt), ElementsAre(30, 40, 50));
  EXPECT_THAT(visible_ids(ids, 1, 1), ElementsAre(50));
}

}  // namespace
}  // namespace keel
