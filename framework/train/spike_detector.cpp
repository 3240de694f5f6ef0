#include "framework/train/spike_detector.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::train {

SpikeScore SpikeDetector::statistics() const {
  SpikeScore score{.limit = std::numeric_limits<double>::infinity(), .history = int64_t(values_.size())};
  if (values_.empty()) return score;
  // Two passes over at most some thousand values: exact where a running sum of squares would cancel.
  for (double v : values_) score.mean += v;
  score.mean /= double(values_.size());
  double squares = 0;
  for (double v : values_) squares += (v - score.mean) * (v - score.mean);
  score.deviation = std::max(std::sqrt(squares / double(values_.size())), deviation_floor_ * std::abs(score.mean));
  if (score.history >= options_.min_history && score.deviation > 0)
    score.limit = score.mean + options_.sigmas * score.deviation;
  return score;
}

double SpikeDetector::limit() const {
  return statistics().limit;
}

SpikeScore SpikeDetector::judge(double value) const {
  SpikeScore score = statistics();
  score.spike = !(std::isfinite(value) && value <= score.limit);
  if (std::isfinite(value) && std::isfinite(score.limit)) score.sigmas = (value - score.mean) / score.deviation;
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
