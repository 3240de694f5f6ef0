// A disk that does not answer ends the run, on all ranks, with a line that says where; a slow one does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/base/error.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

testing::Ended run_stuck(const std::string& moment) {
  const testing::TemporaryFolder folder;
  return testing::run_command(fmt::format(
      "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 1 60 {} --oversubscribe --bind-to none "
      "-n 3 {} {} {}",
      MPIRUN, STUCK, folder.path(), moment));
}

TEST(Stuck, OneRankAloneIsNamed) {
  const testing::Ended ended = run_stuck("alone");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.ours, Contains(HasSubstr("rank 2: ")));
  EXPECT_THAT(ended.ours, Contains(HasSubstr("step-00000001.h5 has not ended within 0.5 s")));
}

TEST(Stuck, WhatCameFirstIsSaid) {
  const testing::Ended ended = run_stuck("unanswered");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(testing::errors_of(ended), ElementsAre(HasSubstr("without an answer of rank")));
}

TEST(Stuck, ASaveEndsOnAllRanks) {
  const testing::Ended ended = run_stuck("save");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(testing::errors_of(ended),
              ElementsAre(AllOf(HasSubstr("opening "), HasSubstr("or another rank is stuck"))));
}

// CASES R77: a save may take far longer than an exchange of training.
TEST(Stuck, ASlowDiskIsWaitedFor) {
  const testing::Ended ended = run_stuck("slow");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

}  // namespace
}  // namespace keel::checkpoints
