#include "framework/io/event_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;

TEST(EventCommand, EachEventIsALineOnItsStandardInput) {
  TemporaryFolder scratch;
  {
    EventCommand command("cat >> '" + (scratch / "told") + "'", 10);
    for (int i = 0; i < 3; ++i) command.tell({{"event", "skip"}, {"step", i}});
  }
  EXPECT_EQ(read_bytes(scratch / "told"),
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

// With all that it has started, and the next event is told.
TEST(EventCommand, ACommandThatHangsIsKilledInMidRun) {
  TemporaryFolder scratch;
  const std::string told = scratch / "told", started = scratch / "started";
  EventCommand command(
      "read line; case $line in *0*) sleep 30 & echo $! > '" + started + "'; wait;; esac; echo $line >> '" + told + "'",
      1);
  for (int i = 0; i < 2; ++i) command.tell({{"step", i}});
  const auto begin = Clock::now();
  while (read_bytes(told).empty() && seconds_since(begin) < 10) usleep(10000);
  EXPECT_EQ(read_bytes(told), "{\"step\":1}\n");
  // It dies once it gets a core: the signal does not wait for that.
  const std::string status = "/proc/" + std::to_string(std::stol(read_bytes(started))) + "/status";
  const auto gone = [&] {
    const std::string now = read_bytes(status);
    return now.empty() || now.find("State:\tZ") != std::string::npos;
  };
  while (!gone() && seconds_since(begin) < 20) usleep(10000);
  EXPECT_TRUE(gone()) << read_bytes(status);
}

TEST(EventCommand, TheNewestAreDroppedWhereTooManyWait) {
  TemporaryFolder scratch;
  {
    EventCommand command("[ -e '" + (scratch / "go") + "' ] || sleep 0.5; cat >> '" + (scratch / "told") + "'", 60);
    for (int i = 0; i < 300; ++i) command.tell({{"step", i}});
    write_bytes(scratch / "go", "");
  }
  const std::string told = read_bytes(scratch / "told");
  const auto lines = std::count(told.begin(), told.end(), '\n');
  EXPECT_GE(lines, 256);  // and the one that was being told
  EXPECT_LE(lines, 258);
  EXPECT_EQ(told.find("\"step\":299}"), std::string::npos);
}

void tell_and_fail(const std::string& command_line, double limit_seconds, int events) {
  try {
    EventCommand command(command_line, limit_seconds);
    for (int i = 0; i < events; ++i) command.tell({{"step", i}});
    throw input_error("an error");
  } catch (const Error&) {
  }
}

// The last one may be the reason of the error; but no error waits for more than the limit.
TEST(EventCommand, AnErrorWaitsForEventsThatAreQueuedWithinTheLimit) {
  TemporaryFolder scratch;
  tell_and_fail("sleep 0.1; cat >> '" + (scratch / "told") + "'", 10, 3);
  EXPECT_EQ(read_bytes(scratch / "told"), "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n");
  const auto begin = Clock::now();
  tell_and_fail("sleep 30", 0.5, 50);
  EXPECT_LT(seconds_since(begin), 10);
}

}  // namespace
}  // namespace keel::io
