#include "framework/train/probe.h"

#include <gmock/gmock.h>

#include "framework/data/token_writer.h"
#include "tests/support/folder.h"

namespace keel::train {
namespace {

// An empty shard is no error of a set, and neither is one of a single token.
TEST(Probe, IsOfTheFirstSourceThatHasATarget) {
  const testing::TemporaryFolder folder;
  int32_t tokens = 0;
  for (const char* name : {"s_0", "s_1", "s_2"}) {
    data::TokenWriter writer(folder / name, 300);
    for (int32_t i = 0; i < tokens; ++i) writer.append(std::vector<int32_t>{10 + i});
    writer.end_document();
    writer.finish();
    tokens += tokens == 0 ? 1 : 5;
  }
  for (const bool document_mask : {false, true}) {
    const data::Dataset dataset({{folder / "s_*.bin"}}, {.T = 4, .vocabulary = 300, .document_mask = document_mask});
    const Probe probe = make_probe(dataset, 4, document_mask);
    EXPECT_THAT(probe.tokens, ::testing::ElementsAre(10, 11, 12, 13));
    EXPECT_THAT(probe.targets, ::testing::ElementsAre(11, 12, 13, 14));
  }
}

}  // namespace
}  // namespace keel::train
