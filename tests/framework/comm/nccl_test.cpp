// How runs on GPUs start and fail: exit code, lines and time of nccl_helper under mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/base/error.h"
#include "tests/support/command.h"

namespace keel::comm {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Ended;
using testing::errors_of;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr double kSoon_seconds = 20;

Ended run_ranks(const std::string& ranks, const std::string& variables = "") {
  return testing::run_command(
      fmt::format("env {} timeout -k 1 60 {} --oversubscribe --bind-to none {}", variables, MPIRUN, ranks));
}
Ended run_ranks(int ranks, const std::string& name, const std::string& variables = "") {
  return run_ranks(fmt::format("-n {} {} {}", ranks, HELPER, name), variables);
}

TEST(GpuStart, EachRankTakesItsOwnGpu) {  // CASES R62
  EXPECT_THAT(run_ranks(1, "fine").lines, ElementsAre("rank 0 on cuda:0"));
  EXPECT_THAT(run_ranks(3, "fine").lines,
              UnorderedElementsAre("rank 0 on cuda:0", "rank 1 on cuda:1", "rank 2 on cuda:2"));
  EXPECT_THAT(run_ranks(2, "fine", "CUDA_VISIBLE_DEVICES=5,2").lines,
              UnorderedElementsAre("rank 0 on cuda:0", "rank 1 on cuda:1"));
}

// A first launch that loads its kernel may wait for the whole GPU, where no time limit holds.
TEST(GpuStart, RanksThatWaitForEachOtherLoadTheirKernelsFirst) {
  EXPECT_THAT(run_ranks(1, "loading").lines, ElementsAre("kernels are loaded "));
  EXPECT_THAT(run_ranks(2, "loading").lines, ElementsAre("kernels are loaded EAGER", "kernels are loaded EAGER"));
  EXPECT_THAT(run_ranks(2, "loading", "CUDA_MODULE_LOADING=LAZY").lines, Contains("kernels are loaded LAZY"));
}

TEST(GpuStart, ALauncherMayLeaveEachRankOneGpu) {
  const std::string one = fmt::format("-n 1 -x CUDA_VISIBLE_DEVICES=3 {} fine", HELPER);
  const std::string other = fmt::format("-n 1 -x CUDA_VISIBLE_DEVICES=1 {} fine", HELPER);
  EXPECT_THAT(run_ranks(one + " : " + other).lines, UnorderedElementsAre("rank 0 on cuda:0", "rank 1 on cuda:0"));
}

TEST(GpuStart, TwoRanksOnOneGpuAreRefused) {
  const Ended run = run_ranks(2, "fine", "CUDA_VISIBLE_DEVICES=0");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("2 ranks on host "), HasSubstr(", 1 device visible to each: "),
                                          HasSubstr("ranks 0 and 1 would share one GPU"))));
}

TEST(GpuStart, TooFewGpusAreRefusedWithBothNumbers) {
  Ended run = run_ranks(3, "fine", "CUDA_VISIBLE_DEVICES=0,1");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("3 ranks on host "), HasSubstr(", 2 devices visible: "))));
  run = run_ranks(1, "fine", "CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("1 rank on host "), HasSubstr(", 0 devices visible: "))));
}

TEST(GpuStart, AMissingInterfaceIsHintedAt) {
  const Ended run = run_ranks(2, "fine", "NCCL_SOCKET_IFNAME=absent");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("the GPUs of the 2 ranks could not be brought together"),
                                          HasSubstr("no socket interface found"), HasSubstr("NCCL_SOCKET_IFNAME"))));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(GpuFailure, ALateRankIsATimeout) {
  for (const char* name : {"late", "late_while_polling", "late_while_launching"}) {
    const Ended run = run_ranks(3, name);
    EXPECT_EQ(run.code, 1) << name;
    EXPECT_THAT(errors_of(run),
                ElementsAre(AllOf(HasSubstr("comm timeout: rank 0 of 3 in group 'all', all_reduce of 1 fp32 elements: "
                                            "0.5 s passed without its end"),
                                  HasSubstr("NCCL_DEBUG=INFO"), HasSubstr("NCCL_IB_DISABLE=1"))))
        << name;
    // Every rank says where it stands: those that wait for their GPU, and the one that they wait for.
    EXPECT_THAT(run.ours, Contains(AllOf(StartsWith("keel: warning: on host "), HasSubstr("waiting for 0."),
                                         HasSubstr("all_reduce of 1 fp32 elements"))))
        << name;
    EXPECT_THAT(run.ours, Contains(AllOf(StartsWith("keel: rank 2: "), HasSubstr("waiting for no other rank"))))
        << name;
    EXPECT_LT(run.seconds, kSoon_seconds) << name;
  }
}

// A cudaFree or cudaMalloc would wait for a GPU that an abort does not stop, and the run would never end (CASES R60).
TEST(GpuFailure, AnAbortThatDoesNotEndIsNotWaitedFor) {
  Ended run = run_ranks(3, "late_and_not_to_be_stopped");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("comm timeout: rank 0 of 3 in group 'all'")));
  run = run_ranks(2, "all_late_and_not_to_be_stopped");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("comm timeout: rank 0 of 2 in group 'all', recv")));
  run = run_ranks(2, "in_flight_not_to_be_stopped");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: with work in flight"));
}

TEST(GpuFailure, MemoryIsNotTakenUnderAVerbThatDoesNotEnd) {
  const Ended run = run_ranks(3, "late_while_allocating");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("comm timeout: rank 0 of 3 in group 'all'")));
  EXPECT_THAT(run.ours, Not(Contains(HasSubstr("memory was taken"))));
}

// A rank that hangs before its GPU is there: the others are between two communicators then.
TEST(GpuFailure, ARankThatIsLateAtTheStartIsATimeout) {
  const Ended run = run_ranks(3, "late_at_start");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("comm timeout: ")));
  EXPECT_THAT(run.ours, Contains(AllOf(StartsWith("keel: rank 1: "), HasSubstr("warning: on host "))));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(GpuFailure, AllGroupsAreAbortedTogether) {
  const Ended run = run_ranks(2, "aborted");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, Contains(HasSubstr("first: comm timeout")));
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("NCCL was aborted after an earlier error")));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(GpuFailure, AnAsynchronousErrorEndsTheRun) {
  const Ended run = run_ranks(2, "network");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("NCCL failure: rank 0 of 2 in group 'all'"),
                                          HasSubstr("remote process exited or there was a network error"))));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(GpuFailure, DifferentCountsAreNamed) {
  const Ended run = run_ranks(2, "other_counts");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("of 100 fp32 elements"), HasSubstr("of 101 fp32 elements"))));
}

TEST(GpuFailure, ARankThatFailsDoesNotWaitForItsGpu) {
  const Ended run = run_ranks(2, "in_flight");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: with work in flight"));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(GpuFailure, ATensorOfAnotherGpuIsRefused) {
  const Ended run = run_ranks(2, "elsewhere");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("this rank's GPU is cuda:0, the tensor is on cuda:1")));
}

}  // namespace
}  // namespace keel::comm
