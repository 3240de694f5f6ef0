// Is the latest value a spike? It is compared with mean and deviation of accepted values before it (Chowdhery et al.
// 2022 and OLMo report skipping such steps): value > mean + sigmas * max(deviation, floor * |mean|). A value that is
// not finite is a spike by itself. Spikes never enter the statistics, low values are no spikes, and there is no verdict
// before a minimum history.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "framework/config/run_config.h"

namespace keel::train {

struct SpikeScore {
  bool spike = false;
  double mean = 0;
  double deviation = 0;  // with its floor
  double sigmas = 0;     // (value - mean) / deviation; 0 without enough history
  double limit = 0;
  int64_t history = 0;
};

class SpikeDetector {
 public:
  // deviation_floor: share of |mean|, so that a flat history does not make every change a spike.
  SpikeDetector(const config::SpikeConfig& options, double deviation_floor)
      : options_(options), deviation_floor_(deviation_floor) {}

  // What the next value may be at most; infinity before the minimum history.
  double limit() const;
  // A value above limit(), or not finite, is a spike.
  SpikeScore judge(double value) const;
  // After the step was accepted; values that are not finite are ignored.
  void accept(double value);

  std::vector<double> history() const { return {values_.begin(), values_.end()}; }
  void restore(const std::vector<double>& values);

 private:
  // Of the history; no value is judged.
  SpikeScore statistics() const;

  config::SpikeConfig options_;
  double deviation_floor_;
  std::deque<double> values_;
};

}  // namespace keel::train
