// The live line of a terminal, or a plain line now and then where the output is no terminal:
//   step 1200/5000  loss 3.2140  lr 9.80e-04  |g| 0.410  max logit 11.2  31.2k tok/s  MFU 61%  ETA 12m08s
#pragma once

#include "framework/base/clock.h"
#include "framework/train/run_files_hook.h"

namespace keel::train {

struct ProgressOptions {
  bool speaker = true;  // rank 0
  bool terminal = false;
  int64_t every = 10;  // steps between plain lines
  int64_t total_steps = 0;
  Throughput throughput;
};

class ProgressHook : public Hook {
 public:
  explicit ProgressHook(const ProgressOptions& options) : options_(options) {}
  void start(const Progress& progress) override;
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;
  void finish(const Progress& progress, const Ending& ending) override;

 private:
  std::string line(const StepReport& report) const;

  ProgressOptions options_;
  double seconds_per_step_ = 0;  // exponential mean, so that the estimate is steady
  Stopwatch steps_;
  bool line_open_ = false;
};

}  // namespace keel::train
