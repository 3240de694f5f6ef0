// Shows every step to a function, on every rank.
#pragma once

#include <functional>

#include "framework/train/hook.h"

namespace keel::train {

class WatchHook : public Hook {
 public:
  explicit WatchHook(std::function<void(const StepReport&)> watch) : watch_(std::move(watch)) {}
  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override {
    if (watch_) watch_(report);
    return {};
  }

 private:
  std::function<void(const StepReport&)> watch_;
};

}  // namespace keel::train
