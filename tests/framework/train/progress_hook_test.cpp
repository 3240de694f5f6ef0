// The live line, and what stands in its place where the output is no terminal.
#include "framework/train/progress_hook.h"

#include <gmock/gmock.h>

namespace keel::train {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

// 93,600 tokens in 3 seconds; of 52 million operations a second 90% by the full convention, 60% by the causal one.
constexpr Throughput kThroughput{
    .operations_full = 1500, .operations_causal = 1000, .peak_operations_per_second = 5.2e7};

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 3.21404;
  report.lr = 9.8e-4;
  report.gradient_norm = 0.4096;
  report.tokens = 93600;
  report.seconds = {.data = 0.25, .forward = 0.5, .backward = 1.25, .reduction = 0.375, .update = 0.625};
  report.largest_logit = {2, 11.2f, 4};
  return report;
}

const std::string kNumbers = "  loss 3.2140  lr 9.80e-04  |g| 0.410  max logit 11.2  31.2k tok/s  MFU 60%  ETA ";

// What is said of these steps, the end of the run with it.
std::string output_of(const ProgressOptions& options, std::initializer_list<int64_t> steps, const Verdict& verdict = {},
                      bool updated = true) {
  CaptureStderr();
  ProgressHook hook(options);
  hook.start({});
  for (int64_t step : steps) {
    StepReport report = report_of(step);
    report.updated = updated;
    hook.after_step(report, verdict, {});
  }
  hook.finish({}, {});
  return GetCapturedStderr();
}

TEST(ProgressHook, OneLiveLineOnATerminal) {
  const ProgressOptions terminal{.terminal = true, .total_steps = 2, .throughput = kThroughput};
  const std::string both = output_of(terminal, {1, 2});
  EXPECT_THAT(both, ::testing::StartsWith("\r\033[Kstep 1/2" + kNumbers));
  // With nothing left to do the time to the end is known.
  EXPECT_THAT(both, ::testing::EndsWith("s\r\033[Kstep 2/2" + kNumbers + "0s\n"));
}

TEST(ProgressHook, PlainLinesNowAndThen) {
  const ProgressOptions plain{.every = 4, .total_steps = 10, .throughput = kThroughput};
  const std::string lines = output_of(plain, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(std::ranges::count(lines, '\n'), 4) << lines;
  size_t at = 0;
  for (int step : {1, 4, 8, 10}) {
    const std::string line = "keel: step " + std::to_string(step) + "/10" + kNumbers;
    at = lines.find(line, at);
    EXPECT_NE(at, std::string::npos) << line << " is not in order in\n" << lines;
  }
  EXPECT_THAT(lines, ::testing::EndsWith("ETA 0s\n"));
  EXPECT_EQ(output_of({.speaker = false, .total_steps = 1}, {1}), "");
}

TEST(ProgressHook, SaysWhatCameOfAStepInTrouble) {
  const ProgressOptions plain{.every = 1, .total_steps = 10};
  EXPECT_EQ(output_of(plain, {3}, {Action::skip, "a reason"}, false),
            "keel: warning: step 3 left the weights as they were: a reason\n");
  EXPECT_EQ(output_of(plain, {3}, {Action::lower_lr, "a reason"}),
            "keel: warning: step 3 lowers the learning rate of the next ones: a reason\n");
  EXPECT_EQ(output_of(plain, {3}, {Action::roll_back, "a reason"}),
            "keel: warning: step 3 was taken, and is in trouble: a reason\n");
}

}  // namespace
}  // namespace keel::train
