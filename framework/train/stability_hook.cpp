#include "framework/train/stability_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keel::train {
namespace {

std::string reason_of(const SpikeDetector& detector, const char* what, double value, bool spikes,
                      const std::string& where) {
  const SpikeScore score = detector.judge(value);
  if (!std::isfinite(value)) return fmt::format("the {} is {}, first {}", what, value, where);
  if (!spikes || !score.spike) return {};
  return fmt::format("the {} {:.6g} is {:.1f} deviations above the mean {:.6g} of {} steps", what, value, score.sigmas,
                     score.mean, score.history);
}

}  // namespace

std::string StabilityHook::reason_to_skip(const StepReport& report) const {
  std::string reason = reason_of(loss_, "loss", report.loss, options_.spikes, report.not_finite);
  if (!reason.empty()) return reason;
  return reason_of(gradient_, "gradient norm", report.gradient_norm, options_.spikes, report.not_finite);
}

void StabilityHook::limit(StepLimits& limits) const {
  if (!options_.spikes) return;
  limits.loss = std::min(limits.loss, loss_.limit());
  limits.gradient_norm = std::min(limits.gradient_norm, gradient_.limit());
}

Verdict StabilityHook::judge(const StepReport& report) {
  std::string reason = reason_to_skip(report);
  if (reason.empty()) return {};
  if (skipped_in_a_row_ < options_.max_skips) return {Action::skip, reason};
  return {Action::stop_unstable,
          fmt::format("{}, after {} skipped steps in a row (stability.max_skips): lower optimizer.lr, turn on "
                      "QK-Norm, or look at the data of samples {} to {}",
                      reason, skipped_in_a_row_, report.first_sample, report.end_sample)};
}

Verdict StabilityHook::after_step(const StepReport& report, const Verdict& verdict, const Progress&) {
  if (verdict.action == Action::proceed) {
    loss_.accept(report.loss);
    gradient_.accept(report.gradient_norm);
    skipped_in_a_row_ = 0;
  } else {
    ++skipped_in_a_row_;
  }
  return {};
}

nlohmann::json StabilityHook::state() const {
  return {{"loss", loss_.history()}, {"gradient_norm", gradient_.history()}, {"skipped_in_a_row", skipped_in_a_row_}};
}

void StabilityHook::restore(const nlohmann::json& state) {
  loss_.restore(state.at("loss").get<std::vector<double>>());
  gradient_.restore(state.at("gradient_norm").get<std::vector<double>>());
  skipped_in_a_row_ = state.at("skipped_in_a_row").get<int64_t>();
}

}  // namespace keel::train
