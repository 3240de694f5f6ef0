// Records where the time of a few steps goes (base/trace.h): one file per rank, traces/step-N-rank-R.json of the run.
#pragma once

#include <string>

#include "framework/train/hook.h"

namespace keel::train {

struct TraceOptions {
  std::string directory;  // made where it is absent
  int rank = 0;
  int64_t from = 1;   // the first step recorded; one that the run has passed already: none is
  int64_t steps = 0;  // so many; 0: none
};

// The last hook of all, so that a step ends with what the others do after it.
class TraceHook : public Hook {
 public:
  explicit TraceHook(TraceOptions options) : options_(std::move(options)) {}

  void start(const Progress& progress) override { start_after(progress.step); }
  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override;
  void finish(const Progress& progress, const Ending&) override;

 private:
  void start_after(int64_t step);
  void write(int64_t last_step);

  TraceOptions options_;
  bool recording_ = false;
};

}  // namespace keel::train
