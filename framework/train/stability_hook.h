// Skips steps whose loss or gradient is not finite or spikes, and stops the run when too many follow one another.
// (Lower learning rate, rollback and fallbacks will be further rungs here.)
#pragma once

#include "framework/train/hook.h"
#include "framework/train/spike_detector.h"

namespace keel::train {

struct StabilityOptions {
  int64_t max_skips = 3;  // in a row; one more stops the run
  bool spikes = true;     // also finite values far above the recent mean
  SpikeOptions spike;     // of the loss
  double gradient_deviation_floor = 0.1;
};

class StabilityHook : public Hook {
 public:
  explicit StabilityHook(const StabilityOptions& options)
      : options_(options), loss_(options.spike), gradient_(of_gradients(options)) {}

  void limit(StepLimits& limits) const override;
  Verdict judge(const StepReport& report) override;
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;

  std::string name() const override { return "stability"; }
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;

 private:
  static SpikeOptions of_gradients(const StabilityOptions& options) {
    SpikeOptions spike = options.spike;
    spike.deviation_floor = options.gradient_deviation_floor;
    return spike;
  }
  std::string reason_to_skip(const StepReport& report) const;

  StabilityOptions options_;
  SpikeDetector loss_, gradient_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace keel::train
