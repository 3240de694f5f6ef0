#include "framework/lab/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <deque>
#include <numeric>

#include "framework/base/error.h"

namespace keel::lab {
namespace {

template <class Values>
double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

// Sum of squares around the mean, in a second pass.
template <class Values>
double squares_of(const Values& values, double mean) {
  double sum = 0;
  for (double value : values) sum += (value - mean) * (value - mean);
  return sum;
}

}  // namespace

Estimate estimate(std::span<const double> values) {
  Estimate result{.count = values.size()};
  if (values.empty()) return result;
  result.mean = mean_of(values);
  if (values.size() < kLeastForInterval) return result;
  const double n = double(values.size());
  const double error = std::sqrt(squares_of(values, result.mean) / (n - 1) / n);
  result.half_width = boost::math::quantile(boost::math::students_t(n - 1), 0.975) * error;
  return result;
}

Estimate paired_difference(std::span<const double> a, std::span<const double> b) {
  require(a.size() == b.size(), "{} values cannot be paired with {}", a.size(), b.size());
  std::vector<double> differences(a.size());
  std::transform(a.begin(), a.end(), b.begin(), differences.begin(), std::minus<>());
  Estimate result = estimate(differences);
  if (a.size() < kLeastForProbability || *result.half_width == 0) return result;
  const boost::math::students_t distribution(double(a.size()) - 1);
  const double t = result.mean / (*result.half_width / boost::math::quantile(distribution, 0.975));
  result.p = 2 * boost::math::cdf(boost::math::complement(distribution, std::abs(t)));
  return result;
}

double lr_sensitivity(std::span<const double> losses, double l0) {
  require(!losses.empty(), "the sensitivity of no losses");
  std::vector<double> kept;
  for (double loss : losses) kept.push_back(std::isfinite(loss) ? std::min(loss, l0) : l0);
  const double best = *std::min_element(kept.begin(), kept.end());
  for (double& loss : kept) loss -= best;
  return mean_of(kept);
}

double spike_score(std::span<const double> values, const SpikeRule& rule) {
  constexpr size_t kLeastHistory = 128;
  std::deque<double> history;
  int64_t judged = 0, spikes = 0;
  for (double value : values) {
    if (history.size() >= kLeastHistory) {
      const double mean = mean_of(history);
      const double deviation = std::sqrt(squares_of(history, mean) / double(history.size()));
      ++judged;
      spikes += !std::isfinite(value) || (deviation > 0 && std::abs(value - mean) >= rule.deviations * deviation);
    }
    if (!std::isfinite(value)) continue;
    history.push_back(value);
    if (int64_t(history.size()) > rule.window) history.pop_front();
  }
  return judged > 0 ? double(spikes) / double(judged) : 0;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace keel::lab
