// How runs end: exit code, lines and time of ending_helper under mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "framework/base/error.h"
#include "tests/support/command.h"

namespace keel::comm {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using testing::Ended;
using testing::errors_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

Ended run_command(const std::string& command) {
  return testing::run_command("timeout -k 1 60 " + command);
}

Ended run_ranks(int ranks, const std::string& name, const std::string& options = "--oversubscribe --bind-to none") {
  return run_command(fmt::format("{} {} -n {} {} {}", MPIRUN, options, ranks, HELPER, name));
}

// mpirun on a busy machine starts and stops in seconds; a hang would be 60.
constexpr double kSoon_seconds = 20;

class Ranks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Counts, Ranks, ::testing::Values(1, 2, 4), ::testing::PrintToStringParamName());

TEST_P(Ranks, FineIsSilent) {
  Ended run = run_ranks(GetParam(), "fine");
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.lines, IsEmpty());
}

TEST_P(Ranks, ResultOfTheBodyIsTheExitCode) {
  Ended run = run_ranks(GetParam(), "code_3");
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.ours, IsEmpty());
}

TEST_P(Ranks, InputErrorIsOneLineAndCode2) {
  for (const char* name : {"input_on_all", "input_on_rank_0"}) {
    Ended run = run_ranks(GetParam(), name);
    EXPECT_EQ(run.code, 2) << name;
    EXPECT_THAT(run.ours, ElementsAre("keel: error: x.yaml:1:2: no such key")) << name;
    EXPECT_LT(run.seconds, kSoon_seconds);
  }
}

TEST_P(Ranks, InternalErrorNamesPlaceAndRank) {
  const std::string rank = GetParam() > 1 ? "rank 0: " : "";
  for (const char* name : {"internal_on_all", "internal_on_rank_0"}) {
    Ended run = run_ranks(GetParam(), name);
    EXPECT_EQ(run.code, 1) << name;
    EXPECT_THAT(run.ours, ElementsAre(AllOf(StartsWith("keel: error: " + rank),
                                            HasSubstr("tests/framework/comm/ending_helper.cpp:"),
                                            HasSubstr(": a broken promise"))))
        << name;
  }
}

struct Alone {
  const char* name;
  int code;
  const char* text;
};

TEST_P(Ranks, ErrorOfOneRankEndsAll) {
  const Alone cases[] = {{"alone_input", 2, "keel: error: alone"},
                         {"alone_internal", 1, ": alone"},
                         {"alone_bad_alloc", 1, "out of memory: use fewer"},
                         {"alone_number", 1, "unknown type"},
                         {"alone_mpi_error", 1, "MPI_Send failed: MPI_ERR_RANK: invalid rank"}};
  for (auto [name, code, text] : cases) {
    Ended run = run_ranks(GetParam(), name);
    EXPECT_EQ(run.code, code) << name;
    EXPECT_THAT(run.ours, ElementsAre(HasSubstr(text))) << name;
    if (code == 1 && GetParam() > 1) {
      EXPECT_THAT(run.ours, ElementsAre(HasSubstr(fmt::format("rank {}: ", GetParam() - 1)))) << name;
    }
    EXPECT_LT(run.seconds, kSoon_seconds) << name;
  }
}

TEST_P(Ranks, OutOfMemoryOnRank0IsOneLine) {
  Ended run = run_ranks(GetParam(), "out_of_memory_on_rank_0");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours,
              ElementsAre(AllOf(HasSubstr("framework/comm/agreement.cpp:"), HasSubstr(": out of memory: use fewer"))));
}

TEST(Ending, RealOutOfMemory) {
  Ended run = run_ranks(2, "alone_out_of_memory");
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.ours.size(), 1u);
}

// CASES R60: a rank that can say nothing any more is named once by mpirun, with its signal.
TEST(Ending, KilledRankEndsAll) {
  for (auto [name, signal] : {std::pair("alone_kill", SIGKILL), {"alone_segv", SIGSEGV}, {"alone_term", SIGTERM}}) {
    Ended run = run_ranks(4, name);
    EXPECT_EQ(run.code, 128 + signal) << name;
    EXPECT_THAT(run.lines, Contains(HasSubstr("exited on signal ")).Times(1)) << run.output;
    EXPECT_THAT(run.lines, Contains(AllOf(HasSubstr("process rank 3 with PID"),
                                          HasSubstr(fmt::format("exited on signal {} (", signal)))));
    EXPECT_LT(run.seconds, kSoon_seconds) << name;
  }
  Ended run = run_ranks(4, "alone_exit");
  EXPECT_EQ(run.code, 7);
  EXPECT_THAT(run.lines, Contains(AllOf(HasSubstr("Process name: "), HasSubstr(",3]"))).Times(1)) << run.output;
  EXPECT_THAT(run.lines, Contains(ContainsRegex("Exit code: +7")).Times(1));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(Ending, SeveralFailingRanksSpeakOnce) {
  Ended run = run_ranks(4, "all_but_one_fail");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: all but one"));
}

TEST(Ending, RequestsInFlightDoNotHang) {
  Ended run = run_ranks(3, "pending");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: with requests in flight"));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(Ending, TimeoutNamesRankVerbSizeAndWhoIsMissing) {
  Ended run = run_ranks(3, "timeout");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run),
              ElementsAre(AllOf(HasSubstr("comm timeout: rank 0 of 3 in group 'all', all_reduce of "
                                          "1048576 fp32 elements: 0.5 s passed without an answer of rank"),
                                ContainsRegex("without an answer of rank (1, )?2"))));
  EXPECT_LT(run.seconds, kSoon_seconds);
  // Every rank says where it stands: the two that wait, and the one that they wait for.
  for (const char* rank : {"keel: ", "keel: rank 1: "})
    EXPECT_THAT(run.ours, Contains(AllOf(StartsWith(rank), HasSubstr("warning: on host "),
                                         HasSubstr("step 0, starting"), HasSubstr("all_reduce of 1048576"))));
  EXPECT_THAT(run.ours, Contains(AllOf(StartsWith("keel: rank 2: "), HasSubstr("waiting for no other rank"))));
  run = run_ranks(2, "timeout_on_all");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("rank 0 of 2 in group 'all', recv of 1048576 fp32 elements: 0.5 s "
                                                    "passed without an answer of rank 1")));
  EXPECT_EQ(run.ours.size(), 3u) << run.output;
}

// Where training stands, too, though it is a save that has waited too long.
TEST(Ending, AWaitBesideSaysWhereAllThreadsStand) {
  Ended run = run_ranks(2, "timeout_beside");
  EXPECT_EQ(run.code, 1);
  for (const char* rank : {"keel: ", "keel: rank 1: "})
    EXPECT_THAT(run.ours, Contains(AllOf(StartsWith(rank), HasSubstr("step 7, computing"),
                                         HasSubstr("; saves: step 3, saving"))));
}

// MPI makes groups without a limit.
TEST(Ending, ARankThatDoesNotComeToMakeAGroupIsMissed) {
  for (const char* name : {"split_alone", "another_alone"}) {
    Ended run = run_ranks(2, name);
    EXPECT_EQ(run.code, 1) << name;
    EXPECT_THAT(errors_of(run), ElementsAre(HasSubstr("0.5 s passed without an answer of rank 1"))) << name;
    EXPECT_LT(run.seconds, kSoon_seconds) << name;
  }
}

TEST(Ending, DifferentSizesAreFound) {
  Ended run = run_ranks(2, "other_sizes");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, ElementsAre(HasSubstr("every rank must call the same verbs with the same sizes")));
}

TEST(Ending, SlowRanksAreWaitedFor) {
  Ended run = run_ranks(2, "slow_then_fine");
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.ours, IsEmpty());
  run = run_ranks(2, "fine_and_late_error");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: late"));
}

// A code that is no error gives nobody a reason to end the others.
TEST(Ending, SlowRanksAreWaitedForWhateverTheCode) {
  Ended run = run_ranks(3, "slow_then_code_3");
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.ours, ElementsAre("keel: the slow one's last line"));
  run = run_ranks(3, "code_3_and_error");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: beside a code"));
}

TEST(Ending, RanksThatEndAllSpeakOnce) {
  Ended run = run_ranks(4, "end_all_on_all");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre("keel: error: from everywhere"));
}

TEST(Ending, DifferentBuildsAreRefused) {
  Ended run = run_ranks(3, "different_builds");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.ours, ElementsAre(HasSubstr("build differs between ranks: rank 2 ")));
}

TEST(Start, LauncherThatAnnouncesMoreRanksIsRefused) {  // CASES R61
  for (const char* variables : {"PMI_SIZE=4 SLURM_NTASKS=4", "OMPI_COMM_WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=4",
                                "SLURM_NTASKS=4 SLURM_STEP_ID=0"}) {
    Ended run = run_command(fmt::format("env {} {} fine", variables, HELPER));
    EXPECT_EQ(run.code, 2) << variables;
    EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("is 4, but MPI found 1 rank,"), HasSubstr("mpirun"))))
        << variables;
  }
  // Inside a batch script, outside any step: one process is meant.
  EXPECT_EQ(run_command(fmt::format("env SLURM_NTASKS=4 {} fine", HELPER)).code, 0);
}

TEST(Start, RanksThatCannotBeReachedAreReported) {  // CASES R63
  Ended run = run_ranks(2, "late_start");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.ours, ElementsAre(AllOf(HasSubstr("could not reach each other within 0.5 s"),
                                          HasSubstr("OMPI_MCA_btl_tcp_if_include"), HasSubstr("NCCL_SOCKET_IFNAME"))));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

TEST(Start, LocalRanksShareTheCores) {
  int cores = int(std::stol(run_command("env -u OMP_NUM_THREADS nproc").lines.at(0)));
  Ended run = run_command(
      fmt::format("env -u OMP_NUM_THREADS {} --oversubscribe --bind-to none -n 2 {} threads", MPIRUN, HELPER));
  const int share = std::max(1, cores / 2);
  EXPECT_THAT(run.lines, UnorderedElementsAre(fmt::format("rank 0/2 local 0/2 threads {}", share),
                                              fmt::format("rank 1/2 local 1/2 threads {}", share)));
  run = run_command(
      fmt::format("env OMP_NUM_THREADS=3 {} --oversubscribe --bind-to none -n 1 {} threads", MPIRUN, HELPER));
  EXPECT_THAT(run.lines, ElementsAre("rank 0/1 local 0/1 threads 3"));
}

// 4 ranks on as few as 2 cores: 20 steps and 4000 small exchanges must not crawl., CASES R64
TEST(Start, OversubscribedRanksDoNotCrawl) {
  Ended run =
      run_command(fmt::format("env -u OMP_NUM_THREADS -u OMPI_MCA_mpi_yield_when_idle {} --oversubscribe --bind-to "
                              "none -n 4 {} twenty_steps",
                              MPIRUN, HELPER));
  EXPECT_EQ(run.code, 0);
  EXPECT_LT(run.seconds, 50);
}

// What tests/support/mpi_main.cpp promises to all tests with several ranks.
Ended run_test(const std::string& name) {
  return run_command(fmt::format("{} --oversubscribe --bind-to none -n 3 {} --gtest_filter=MpiMain.{}", MPIRUN,
                                 MPI_MAIN_HELPER, name));
}

TEST(MpiMain, FailureOnAnyRankIsPrintedAndFails) {
  EXPECT_EQ(run_test("Passes").code, 0);
  Ended run = run_test("FailsOnRank1");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.lines, Contains("[rank 1] MpiMain.FailsOnRank1"));
  EXPECT_THAT(run.lines, Contains("this rank is wrong").Times(2));  // ranks 1 and 2
}

TEST(MpiMain, ThrowOfOneRankEndsAll) {
  Ended run = run_test("ThrowsOnRank1");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.lines, Contains(HasSubstr("thrown alone")));
  EXPECT_THAT(run.lines, Contains(HasSubstr("failed while other ranks wait")));
  EXPECT_LT(run.seconds, kSoon_seconds);
}

}  // namespace
}  // namespace keel::comm
