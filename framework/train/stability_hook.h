// Watches for steps in trouble (signals.h) and says what is done about them, rung by rung (ladder.h). Each rung is an
// event with the step, its samples (of a large batch the first 64), and the value, mean and threshold behind it.
#pragma once

#include "framework/train/hook.h"
#include "framework/train/ladder.h"
#include "framework/train/signals.h"

namespace keel::train {

// The steps in trouble that led to a roll back, for whoever makes it.
struct TroubledSteps {
  int64_t first_step = 0, last_step = 0;
  int64_t first_sample = 0, end_sample = 0;  // global sample indices
  std::string reason;
};

class StabilityHook : public Hook {
 public:
  // Events go to `note`.
  explicit StabilityHook(const config::StabilityConfig& options, Note note = {}, MayRollBack may_roll_back = {})
      : signals_(options), ladder_(options, std::move(may_roll_back)), note_(std::move(note)) {}

  double lr_factor(int64_t step) const override { return ladder_.lr_factor(step); }
  void limit(StepLimits& limits) const override;
  Verdict judge(const StepReport& report) override;
  Verdict judge_update(const StepReport& report) override;
  // The present ones, or the last.
  const TroubledSteps& troubled() const { return troubled_; }

  std::string name() const override { return "stability"; }
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;

 private:
  Verdict climb(const StepReport& report, const Trouble& trouble);

  Signals signals_;
  Ladder ladder_;
  Note note_;
  TroubledSteps troubled_;
};

}  // namespace keel::train
