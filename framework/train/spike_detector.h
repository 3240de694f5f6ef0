// Is the latest value a spike? It is compared with mean and deviation of accepted values before it (Chowdhery et al.
// 2022 and OLMo report skipping such steps): value > mean + sigmas * max(deviation, floor * |mean|). A value that is
// not finite is a spike by itself. Spikes never enter the statistics, low values are no spikes, and there is no verdict
// before a minimum history.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace keel::train {

struct SpikeOptions {
  int64_t window = 128;
  int64_t min_history = 128;
  double sigmas = 6;
  double deviation_floor = 1e-3;  // share of |mean|, so that a flat history does not make every change a spike
};

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
  explicit SpikeDetector(const SpikeOptions& options) : options_(options) {}

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

  SpikeOptions options_;
  std::deque<double> values_;
};

}  // namespace keel::train
