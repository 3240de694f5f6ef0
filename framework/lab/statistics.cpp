#include "framework/lab/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

#include "framework/base/error.h"

namespace keel::lab {
namespace {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

// Sum of squares around the mean, in a second pass.
double squares_of(std::span<const double> values, double mean) {
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

bool log_spaced(std::span<const double> values) {
  if (values.size() < 2) return false;
  std::vector<double> places, distances;
  for (double value : values) {
    if (!(value > 0)) return false;
    places.push_back(std::log(value));
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) distances.push_back(places[i] - places[i - 1]);
  const auto [least, most] = std::minmax_element(distances.begin(), distances.end());
  return *least > 0 && *most <= 1.5 * *least;
}

double lr_sensitivity(std::span<const double> losses, double l0) {
  require(!losses.empty(), "the sensitivity of no losses");
  std::vector<double> kept;
  for (double loss : losses) kept.push_back(std::isfinite(loss) ? std::min(loss, l0) : l0);
  const double best = *std::min_element(kept.begin(), kept.end());
  for (double& loss : kept) loss -= best;
  return mean_of(kept);
}

std::optional<double> spike_score(std::span<const double> values, const SpikeRule& rule) {
  constexpr size_t kLeastHistory = 128;
  std::vector<double> finite;
  int64_t judged = 0, spikes = 0;
  for (double value : values) {
    if (finite.size() >= kLeastHistory) {
      const auto history = std::span(finite).last(std::min(finite.size(), size_t(rule.window)));
      const double mean = mean_of(history);
      const double deviation = std::sqrt(squares_of(history, mean) / double(history.size()));
      ++judged;
      spikes += !std::isfinite(value) || (deviation > 0 && std::abs(value - mean) >= rule.deviations * deviation);
    }
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (judged == 0) return std::nullopt;
  return double(spikes) / double(judged);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace keel::lab
