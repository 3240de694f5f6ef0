// keel bench: every line that it promises, on one rank and on two.
#include <gmock/gmock.h>

#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bench = RunFixture;

TEST_F(Bench, PrintsSpeedMemoryAndCosts) {
  const std::string tiny =
      "bench --precision fp32 --steps 1 model.hidden=32 model.layers=2 model.ffn=48 model.vocab=64 "
      "model.attention.heads=4 model.attention.head_dim=8 data.sequence_length=16 batch.sequences=4";
  for (int ranks : {1, 2}) {
    const Ended ended = keel(tiny, ranks);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, AllOf(HasSubstr("products before"), HasSubstr("tokens/s, MFU"), HasSubstr("backward"),
                                    HasSubstr("peak of the process"), HasSubstr("QK-Norm: "),
                                    HasSubstr("telemetry on every step: by timers "), HasSubstr(" ms once)\n"),
                                    HasSubstr("parallel pairs"), HasSubstr("whole steps with and without")));
  }
}

}  // namespace
}  // namespace keel::testing
