// Runs that are asked to end: by SIGUSR1 to mpirun, by SIGTERM to a rank, and by a second signal.
#include <gmock/gmock.h>

#include "framework/io/jsonl.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Signals : public RunFixture {
 protected:
  // A run of many steps on two ranks; `then` is done by a shell when it has taken ten: $run is mpirun, $rank one of its
  // ranks.
  Ended interrupted(const std::string& then, const std::string& overrides = "") {
    std::ofstream(directory_ / "interrupt.sh") << fmt::format(R"sh(
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
lines() {{ cat runs/run/metrics.jsonl 2>/dev/null | wc -l; }}
before=$(lines)
{} --oversubscribe --bind-to none -n 2 {} train run.yaml name=run train.steps=100000 checkpoint.every=null {} &
run=$!
for i in $(seq 600); do
  [ "$(lines)" -ge $((before + 10)) ] && break
  sleep 0.1
done
rank=$(pgrep -P $run | head -n 1)
{}
wait $run
)sh",
                                                              MPIRUN, KEEL_PROGRAM, overrides, then);
    return run_command(fmt::format("cd {} && timeout -k 1 120 bash interrupt.sh", directory_.string()));
  }
  int64_t steps() { return int64_t(metric("run", "loss").size()); }
};

TEST_F(Signals, PreemptionSavesAndTheSameCommandGoesOn) {
  for (const char* then : {"kill -USR1 $run", "kill -TERM $rank", "kill -INT $rank"}) {
    const int64_t before = std::filesystem::exists(directory_ / "runs/run") ? steps() : 0;
    const Ended ended = interrupted(then);
    EXPECT_EQ(ended.code, 4) << then << ended.output;
    EXPECT_THAT(ended.ours, Contains(HasSubstr("and the same command goes on"))) << then;
    EXPECT_GT(steps(), before);
    EXPECT_TRUE(std::filesystem::exists(checkpoint("run", int(steps())))) << ended.output;
  }
}

TEST_F(Signals, TheSecondOneStopsAtOnce) {
  // The first one cannot be served: the other rank has been stopped.
  const Ended ended =
      interrupted("kill -STOP $(pgrep -P $run | tail -n 1); kill -TERM $rank; sleep 2; kill -TERM $rank");
  EXPECT_EQ(ended.code, 1) << ended.output;
  EXPECT_THAT(ended.ours, Contains(HasSubstr("a second signal: stopped at once")));
  EXPECT_LT(ended.seconds, 60);
}

// Launchers hand on what has reached the rank already.
TEST_F(Signals, TwiceWithinAMomentIsOnce) {
  const Ended ended = interrupted("kill -TERM $rank; sleep 0.2; kill -TERM $rank; kill -USR1 $rank");
  EXPECT_EQ(ended.code, 4) << ended.output;
  EXPECT_THAT(ended.ours, Contains(HasSubstr("and the same command goes on")));
}

// With commands that stand in for Slurm's: the warning reaches the ranks, and a job that was told to end, and is not
// done, is queued again however it ends: 138 is a rank that the signal killed at its start.
TEST_F(Signals, TheSlurmScriptQueuesAJobAgain) {
  struct Case {
    int code;
    bool warned;
    bool again;
  };
  for (auto [code, warned, again] : std::initializer_list<Case>{{4, true, true},
                                                                {1, true, true},
                                                                {137, true, true},
                                                                {138, true, true},
                                                                {0, true, false},
                                                                {2, true, false},
                                                                {3, true, false},
                                                                {1, false, false},
                                                                {137, false, false},
                                                                {4, false, true}}) {
    std::ofstream(directory_ / "slurm.sh") << fmt::format(R"sh(
rm -rf bin started queued; mkdir bin
printf '#!/bin/sh\ntrap "exit {}" USR1\ntouch started\n{}\nwhile :; do sleep 0.1; done\n' > bin/srun
printf '#!/bin/sh\necho "$@" > queued\n' > bin/scontrol
chmod +x bin/*
export PATH=$PWD/bin:$PATH SLURM_SUBMIT_DIR=$PWD SLURM_JOB_ID=77
bash {}/launch/slurm/train.sbatch run.yaml &
job=$!
until [ -f started ]; do sleep 0.05; done
{}
wait $job
)sh",
                                                          code, warned ? "" : fmt::format("exit {}", code),
                                                          KEEL_SOURCE_DIR, warned ? "kill -USR1 $job" : "");
    const Ended ended = run_command(fmt::format("cd {} && timeout 60 bash slurm.sh", directory_.string()));
    EXPECT_EQ(ended.code, code) << ended.output;
    std::string queued;
    std::getline(std::ifstream(directory_ / "queued"), queued);
    EXPECT_EQ(queued, again ? "requeue 77" : "") << code << (warned ? " after the warning" : " by itself");
  }
}

// The run ends at that step, so that the next start makes the evaluation up: no later one could.
TEST_F(Signals, AnEvaluationThatWasLeftOutIsMadeUp) {
  std::ofstream text(directory_ / "long.txt");
  for (int i = 0; i < 100000; ++i) text << "bounds " << (i % 9 ? "every " : "any ") << "logit\n";
  text.close();
  ASSERT_EQ(keel("tokenize long.txt --out long").code, 0);
  const std::string overrides = "data.valid=long eval.every=10 eval.sequences=";
  const Ended ended = interrupted("kill -TERM $rank", overrides + "null");
  EXPECT_EQ(ended.code, 4) << ended.output;
  ASSERT_THAT(ended.output, HasSubstr("step 10: the evaluation is left out"));
  EXPECT_EQ(steps(), 10);
  EXPECT_TRUE(metric("run", "valid_loss").empty());
  EXPECT_EQ(keel("train run.yaml name=run train.steps=12 " + overrides + "8", 2).code, 0);
  EXPECT_EQ(metric("run", "valid_loss").size(), 2u);  // of steps 10 and 12
}

// The ranks that have nothing left to do wait for rank 0, which still tells of the end.
TEST_F(Signals, WhatTheEndHasToTellIsTold) {
  const Ended ended = interrupted(":", "train.stop_after=1s \"stability.on_event=sleep 4; cat >> told\"");
  EXPECT_EQ(ended.code, 4) << ended.output;
  EXPECT_THAT(ended.output, ::testing::Not(HasSubstr("a second signal")));
  const auto told = io::read_json_lines((directory_ / "told").string());
  ASSERT_EQ(told.size(), 1u) << ended.output;
  EXPECT_EQ(told[0]["event"], "spike_score");
}

TEST_F(Signals, TimeIsUp) {
  const Ended ended = interrupted(":", "train.stop_after=2s");
  EXPECT_EQ(ended.code, 4) << ended.output;
  EXPECT_TRUE(std::filesystem::exists(checkpoint("run", int(steps())))) << ended.output;
}

}  // namespace
}  // namespace keel::testing
