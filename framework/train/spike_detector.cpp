#include "framework/train/spike_detector.h"

#include <algorithm>
#include <cmath>

namespace keel::train {

SpikeScore SpikeDetector::judge(double value) const {
  SpikeScore score{.history = int64_t(values_.size())};
  score.spike = !std::isfinite(value);
  if (values_.empty()) return score;
  // Two passes over at most some thousand values: exact where a running sum of squares would cancel.
  for (double v : values_) score.mean += v;
  score.mean /= double(values_.size());
  double squares = 0;
  for (double v : values_) squares += (v - score.mean) * (v - score.mean);
  score.deviation =
      std::max(std::sqrt(squares / double(values_.size())), options_.deviation_floor * std::abs(score.mean));
  if (score.history < options_.min_history || score.deviation == 0) return score;
  score.threshold = score.mean + options_.sigmas * score.deviation;
  if (score.spike) return score;
  score.sigmas = (value - score.mean) / score.deviation;
  score.spike = score.sigmas > options_.sigmas;
  return score;
}

void SpikeDetector::accept(double value) {
  if (!std::isfinite(value)) return;
  values_.push_back(value);
  if (int64_t(values_.size()) > options_.window) values_.pop_front();
}

void SpikeDetector::restore(const std::vector<double>& values) {
  values_.clear();
  for (double value : values) accept(value);
}

}  // namespace keel::train
