// Event files, read back by another decoder.
#include "framework/io/tensorboard.h"

#include <cmath>

#include "tests/framework/io/event_file.h"
#include "tests/support/disk.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;

TEST(TensorBoard, EventsAreWhatAnotherDecoderReads) {
  TemporaryFolder scratch;
  TensorBoardWriter writer(scratch / "tensorboard");
  const std::string long_tag(300, 't');
  writer.write(1, std::vector<Scalar>{{"loss", 2.5f}, {long_tag, -0.f}});
  writer.write(3'000'000'000, std::vector<Scalar>{{"loss", std::nanf("")}});
  writer.write(4'000'000'000, {});
  auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[0].scalars.empty());
  EXPECT_EQ(events[1].step, 1);
  ASSERT_EQ(events[1].scalars.size(), 2u);
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>("loss", 2.5f)));
  EXPECT_EQ(events[1].scalars[1].first, long_tag);
  EXPECT_TRUE(std::signbit(events[1].scalars[1].second));
  EXPECT_NEAR(events[1].wall_time, double(std::time(nullptr)), 60);
  EXPECT_EQ(events[2].step, 3'000'000'000);
  EXPECT_TRUE(std::isnan(events[2].scalars[0].second));
  for (const Event& event : events) EXPECT_FALSE(event.session_status.has_value());
  EXPECT_NE(std::filesystem::path(writer.path()).filename().string().find("tfevents"), std::string::npos);
}

TEST(TensorBoard, AResumedRunStartsAFileThatForgetsLaterSteps) {
  TemporaryFolder scratch;
  TensorBoardWriter first(scratch.path()), second(scratch.path(), 11);
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path());  // TensorBoard reads the files of a directory in this order
  auto events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1u);  // START
  EXPECT_EQ(events[1].step, 11);
}

TEST(TensorBoard, AFailedRecordLeavesNoPart) {
  TemporaryFolder scratch;
  TensorBoardWriter writer(scratch.path());
  const std::string tag(5000, 't');
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(writer.write(1, std::vector<Scalar>{{tag, 1.f}}), Error);
  }
  writer.write(2, std::vector<Scalar>{{"loss", 1.f}});
  auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 2);
}

}  // namespace
}  // namespace keel::io
