// Ends a run before its time slot does (train.stop_after), or when a signal asked for it; after its last step there is
// nothing to end.
#pragma once

#include <functional>

#include "framework/base/clock.h"
#include "framework/train/hook.h"

namespace keel::train {

class TimeLimitHook : public Hook {
 public:
  // `limit_seconds` after `begin`, 0: no limit. `asked` says whether a signal came to this rank; `request_stop` tells
  // all ranks at the next step.
  TimeLimitHook(Clock::time_point begin, double limit_seconds, int64_t total_steps, std::function<bool()> asked,
                std::function<void()> request_stop)
      : begin_(begin),
        limit_seconds_(limit_seconds),
        total_steps_(total_steps),
        asked_(std::move(asked)),
        request_stop_(std::move(request_stop)) {}

  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override {
    if (report.step == total_steps_) return {};
    if (report.stop_requested)
      return {Action::stop_saved, "stopped early: the time limit (train.stop_after) or a signal"};
    if (due()) request_stop_();
    return {};
  }

  // On this rank.
  bool due() const {
    const double seconds = seconds_since(begin_);
    return (limit_seconds_ > 0 && seconds > limit_seconds_) || asked_();
  }

 private:
  Clock::time_point begin_;
  double limit_seconds_;
  int64_t total_steps_;
  std::function<bool()> asked_;
  std::function<void()> request_stop_;
};

}  // namespace keel::train
