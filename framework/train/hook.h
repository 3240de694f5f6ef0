// What watches a run. Hooks see the same reports on every rank, in the same order, and must answer the same on every
// rank.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "framework/data/sample_position.h"
#include "framework/io/jsonl.h"
#include "framework/train/step_report.h"

namespace keel::train {

// How far a run has come; all of it goes into checkpoints.
struct Progress {
  int64_t step = 0;     // attempts so far: drives data and learning rate
  int64_t updates = 0;  // accepted ones: drives Adam's bias correction
  int64_t tokens_consumed = 0;
  data::SamplePosition samples;
};

// Takes an event: a line in events.jsonl, and what else there is to tell.
using Note = std::function<void(const std::string& kind, const io::Json& fields)>;

class Hook {
 public:
  virtual ~Hook() = default;

  // Before the first step of this process, at the step resumed from (0 in a new run).
  virtual void start(const Progress&) {}
  // All have started: may end the run before another step.
  virtual Verdict started(const Progress&) { return {}; }
  // Of the scheduled learning rate, at this step.
  virtual double lr_factor(int64_t) const { return 1; }
  // Before the step: may lower the limits.
  virtual void limit(StepLimits&) const {}
  // Gradients are there, and weights and moments are about to change: what still reads them comes to its end first.
  virtual void before_update() {}
  // What the step showed. Where its update was not made (report.updated), says why; may stop the run. Weights are
  // touched or not by the limits alone: a verdict of this on a step whose update was made is an internal error.
  virtual Verdict judge(const StepReport&) { return {}; }
  // What an update that was made showed. Its step stays taken: the answer says how the run goes on.
  virtual Verdict judge_update(const StepReport&) { return {}; }
  // The step is over; `verdict` is the severest of both. Keeps what is to be kept of it, and may stop the run.
  virtual Verdict after_step(const StepReport&, const Verdict&, const Progress&) { return {}; }
  // The loop has ended.
  virtual void finish(const Progress&, const Ending&) {}

  // What a resumed run needs of this hook, stored under `name`; a hook without a name has no state.
  virtual std::string name() const { return {}; }
  virtual nlohmann::json state() const { return {}; }
  virtual void restore(const nlohmann::json&) {}
};

}  // namespace keel::train
