#include "framework/io/event_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/io/scratch.h"

namespace keel::io {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST(EventCommand, EachEventIsALineOnItsStandardInput) {
  Scratch scratch;
  {
    EventCommand command("cat >> '" + (scratch / "told") + "'", 10);
    for (int i = 0; i < 3; ++i) command.tell({{"event", "skip"}, {"step", i}});
  }
  EXPECT_EQ(slurp(scratch / "told"),
            "{\"event\":\"skip\",\"step\":0}\n{\"event\":\"skip\",\"step\":1}\n{\"event\":\"skip\",\"step\":2}\n");
}

// A run that has ended waits for a slow command once, not once per event.
TEST(EventCommand, TheEndWaitsForAllWithinOneLimit) {
  const auto begin = Clock::now();
  {
    EventCommand command("sleep 30", 0.5);
    for (int i = 0; i < 50; ++i) command.tell({{"step", i}});
  }
  EXPECT_LT(seconds_since(begin), 10);
}

TEST(EventCommand, AnErrorDoesNotWaitForEventsThatAreQueued) {
  Scratch scratch;
  try {
    EventCommand command("sleep 0.3; echo told >> '" + (scratch / "told") + "'", 10);
    for (int i = 0; i < 50; ++i) command.tell({{"step", i}});
    throw input_error("an error");
  } catch (const Error&) {
  }
  EXPECT_LE(std::filesystem::exists(scratch / "told") ? slurp(scratch / "told").size() : 0, 5u);  // one, or none yet
}

}  // namespace
}  // namespace keel::io
