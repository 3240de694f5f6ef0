#include "framework/lab/spike_scores.h"

#include <fmt/format.h>

#include "framework/lab/statistics.h"

namespace keel::lab {

SpikeScores spike_scores(std::span<const StepRecord> steps) {
  std::vector<double> losses, gradients;
  for (const StepRecord& step : steps) {
    losses.push_back(step.loss);
    gradients.push_back(step.gradient_norm);
  }
  auto score = [](const std::vector<double>& values, const SpikeRule& rule) {
    return spike_score(values, rule).value_or(std::nan(""));
  };
  return {score(losses, {7, 1000}), score(losses, {6, 128}), score(gradients, {7, 1000}), score(gradients, {6, 128})};
}

std::string text_of_share(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:.4f}", share);
}

}  // namespace keel::lab
