// What says that a step is in trouble: a loss, gradient, update or logit that is not finite or leaps above its recent
// values (spike_detector.h), and attention of a head that falls onto one key.
//
//   before the update   loss, gradient norm, largest logit of each head: the step need not be taken
//   after it            update norm over the learning rate, which a schedule moves; on telemetry steps heads' entropy
//
// Steps in trouble never enter the statistics.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "framework/train/hook.h"
#include "framework/train/ladder.h"
#include "framework/train/spike_detector.h"
#include "framework/train/step_report.h"

namespace keel::train {

// What was found, with the numbers behind it.
struct Trouble {
  std::string signal;  // "loss", "gradient_norm", "largest_logit", "update_norm", "entropy", "counted_tokens"
  std::string reason;  // for people: "the loss 9.1 is 12.3 deviations above the mean 3.2 of 128 steps"
  Grade grade = Grade::heavy;
  double value = 0, mean = 0, threshold = 0;
  int64_t layer = -1, head = -1;  // where it is one head's
};

class Signals {
 public:
  // Of stability.spike and stability.per_head. Where spikes are not enabled, only what is not finite is trouble.
  explicit Signals(const config::StabilityConfig& options);

  // Above these the next step is in trouble.
  StepLimits limits() const;
  std::optional<Trouble> above_limits(const StepReport& report) const;
  // Tells of a head's entropy once, until it has recovered.
  std::optional<Trouble> of_update(const StepReport& report);
  void accept(const StepReport& report);

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  std::optional<Trouble> spike(const SpikeDetector& detector, const char* signal, double value,
                               const std::string& where) const;
  double logit_limit(size_t head) const;
  // The first head above `least`, and above its own limit, or not finite.
  std::optional<Trouble> leaping_logit(const StepReport& report, double least) const;
  std::optional<Trouble> fallen_entropy(const StepReport& report);

  config::SpikeConfig spike_;
  config::PerHeadConfig heads_;
  SpikeDetector loss_, gradient_, update_;
  // Per layer and head, [L, H] row-major.
  std::vector<float> mean_logit_;    // over about `window` accepted steps
  std::vector<float> best_entropy_;  // since the head was last told of
  int64_t accepted_ = 0;
};

}  // namespace keel::train
