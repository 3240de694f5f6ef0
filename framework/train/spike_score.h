// How spiky a run was, as others report it: the share of values that lie at least `sigmas` deviations from the rolling
// mean of the `window` values before them (7 and 1,000: Groeneveld et al. 2024; 6 and 128: the detector's own numbers).
// Every attempted step counts, skipped ones too; a value that is not finite is a spike and no part of a mean.
#pragma once

#include "framework/train/hook.h"
#include "framework/train/spike_detector.h"

namespace keel::train {

class SpikeScoreHook : public Hook {
 public:
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;
  // {"values": n, "loss_7_of_1000": share, "loss_6_of_128", "gradient_norm_7_of_1000", "gradient_norm_6_of_128"}
  io::Json scores() const;
  // "loss 0.02%, gradient norm 0.31% (7 deviations of 1,000 steps)"
  std::string text() const;

  std::string name() const override { return "spike_score"; }
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;

 private:
  struct Score {
    explicit Score(int64_t window, double sigmas)
        : sigmas(sigmas), recent({.window = window, .min_history = window, .deviation_floor = 0}) {}
    void add(double value);
    double sigmas;
    SpikeDetector recent;  // every finite value
    int64_t spikes = 0;
  };
  struct Scores {
    Score wide{1000, 7}, narrow{128, 6};
    double wide_share(int64_t values) const { return values > 0 ? double(wide.spikes) / double(values) : 0; }
    double narrow_share(int64_t values) const { return values > 0 ? double(narrow.spikes) / double(values) : 0; }
  };

  Scores loss_, gradient_;
  int64_t values_ = 0;
};

}  // namespace keel::train
