#include "framework/train/signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::train {
namespace {

const char* words_for(const std::string& signal) {
  return signal == "loss" ? "loss" : signal == "gradient_norm" ? "gradient norm" : "update norm over the learning rate";
}

std::optional<Trouble> taken(Trouble trouble) {
  trouble.grade = Grade::taken;
  return trouble;
}

}  // namespace

Signals::Signals(const config::StabilityConfig& options)
    : spike_(options.spike),
      heads_(options.per_head),
      loss_(spike_, spike_.deviation_floor),
      gradient_(spike_, spike_.gradient_deviation_floor),
      update_(spike_, spike_.update_deviation_floor) {}

std::optional<Trouble> Signals::spike(const SpikeDetector& detector, const char* signal, double value,
                                      const std::string& where) const {
  const SpikeScore score = detector.judge(value);
  Trouble trouble{.signal = signal, .value = value, .mean = score.mean, .threshold = score.limit};
  const char* words = words_for(signal);
  if (!std::isfinite(value)) {
    trouble.reason = fmt::format("the {} is {}{}", words, value, where.empty() ? "" : ", first " + where);
    return trouble;
  }
  if (!spike_.enabled || !score.spike) return std::nullopt;
  trouble.reason = fmt::format("the {} {:.6g} is {:.1f} deviations above the mean {:.6g} of {} steps", words, value,
                               score.sigmas, score.mean, score.history);
  return trouble;
}

double Signals::logit_limit(size_t head) const {
  return std::max(heads_.logit_floor, heads_.logit_factor * double(mean_logit_[head]));
}

// One limit for all heads: the highest of theirs, so that none is judged by another's.
StepLimits Signals::limits() const {
  if (!spike_.enabled) return {};
  StepLimits limits{.loss = loss_.limit(), .gradient_norm = gradient_.limit()};
  if (accepted_ < spike_.min_history) return limits;
  limits.largest_logit = heads_.logit_floor;
  for (size_t i = 0; i < mean_logit_.size(); ++i) limits.largest_logit = std::max(limits.largest_logit, logit_limit(i));
  return limits;
}

std::optional<Trouble> Signals::leaping_logit(const StepReport& report, double least) const {
  const std::vector<float>& logits = report.largest_logit;
  const bool known = spike_.enabled && accepted_ >= spike_.min_history && mean_logit_.size() == logits.size();
  for (size_t i = 0; i < logits.size(); ++i) {
    const double value = logits[i], mean = known ? mean_logit_[i] : 0;
    const double threshold = known ? std::max(least, logit_limit(i)) : std::numeric_limits<double>::infinity();
    if (std::isfinite(value) && value <= threshold) continue;
    const auto layer = int64_t(i) / report.heads, head = int64_t(i) % report.heads;
    std::string reason = fmt::format("the largest logit {:.6g} of head {} in layer {}", value, head, layer);
    if (std::isfinite(value))
      reason += fmt::format(" is above {:.6g}; its mean was {:.6g}", threshold, mean);
    else
      reason += " is not finite";
    return Trouble{.signal = "largest_logit",
                   .reason = reason,
                   .value = value,
                   .mean = mean,
                   .threshold = threshold,
                   .layer = layer,
                   .head = head};
  }
  return std::nullopt;
}

std::optional<Trouble> Signals::above_limits(const StepReport& report) const {
  if (report.counted_tokens == 0)
    return Trouble{.signal = "counted_tokens", .reason = "no token of the batch counts", .threshold = 1};
  if (auto trouble = spike(loss_, "loss", report.loss, report.not_finite)) return trouble;
  if (auto trouble = leaping_logit(report, limits().largest_logit)) return trouble;
  auto trouble = spike(gradient_, "gradient_norm", report.gradient_norm, report.not_finite);
  if (trouble && std::isfinite(trouble->value)) trouble->grade = Grade::light;
  return trouble;
}

std::optional<Trouble> Signals::fallen_entropy(const StepReport& report) {
  constexpr double kFrom = 10;  // times the limit: heads that were always sharp are no trouble
  std::optional<Trouble> first;
  for (size_t i = 0; i < report.entropy.size() && i < best_entropy_.size(); ++i) {
    const double value = report.entropy[i], before = best_entropy_[i];
    if (value >= heads_.min_entropy || before < kFrom * heads_.min_entropy) continue;
    best_entropy_[i] = float(value);
    if (first) continue;
    const auto layer = int64_t(i) / report.heads, head = int64_t(i) % report.heads;
    first =
        Trouble{.signal = "entropy",
                .reason = fmt::format("the attention entropy of head {} in layer {} fell to {:.3g} from {:.3g} nats",
                                      head, layer, value, before),
                .value = value,
                .mean = before,
                .threshold = heads_.min_entropy,
                .layer = layer,
                .head = head};
  }
  return first;
}

std::optional<Trouble> Signals::of_update(const StepReport& report) {
  if (report.lr > 0)
    if (auto trouble = spike(update_, "update_norm", report.update_norm / report.lr, "")) return taken(*trouble);
  if (!spike_.enabled) return std::nullopt;
  auto trouble = leaping_logit(report, 0);
  if (!trouble) trouble = fallen_entropy(report);
  return trouble ? taken(*trouble) : trouble;
}

void Signals::accept(const StepReport& report) {
  loss_.accept(report.loss);
  gradient_.accept(report.gradient_norm);
  if (report.lr > 0) update_.accept(report.update_norm / report.lr);
  mean_logit_.resize(report.largest_logit.size());
  const auto weight = float(1.0 / double(std::min(spike_.window, ++accepted_)));
  for (size_t i = 0; i < mean_logit_.size(); ++i)
    if (std::isfinite(report.largest_logit[i])) mean_logit_[i] += weight * (report.largest_logit[i] - mean_logit_[i]);
  if (!report.telemetry) return;
  best_entropy_.resize(report.entropy.size());
  for (size_t i = 0; i < best_entropy_.size(); ++i) best_entropy_[i] = std::max(best_entropy_[i], report.entropy[i]);
}

nlohmann::json Signals::state() const {
  return {{"loss", loss_.history()},   {"gradient_norm", gradient_.history()}, {"update_norm", update_.history()},
          {"mean_logit", mean_logit_}, {"best_entropy", best_entropy_},        {"accepted", accepted_}};
}

void Signals::restore(const nlohmann::json& state) {
  loss_.restore(state.at("loss").get<std::vector<double>>());
  gradient_.restore(state.at("gradient_norm").get<std::vector<double>>());
  update_.restore(state.at("update_norm").get<std::vector<double>>());
  mean_logit_ = state.at("mean_logit").get<std::vector<float>>();
  best_entropy_ = state.at("best_entropy").get<std::vector<float>>();
  accepted_ = state.at("accepted").get<int64_t>();
}

}  // namespace keel::train
