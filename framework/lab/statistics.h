// The numbers that reports compare arms by (QKNORM.md section 6).
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace keel::lab {

inline constexpr size_t kLeastForInterval = 3, kLeastForProbability = 5;

// The mean of a few values with Student's t interval of 95%, which fewer than 3 values have not.
struct Estimate {
  size_t count = 0;
  double mean = 0;
  std::optional<double> half_width;  // of the interval around the mean
  std::optional<double> p;           // of paired differences: two-sided, against a mean of 0; from 5 values on
};
Estimate estimate(std::span<const double> values);
// Of a[i] - b[i].
Estimate paired_difference(std::span<const double> a, std::span<const double> b);

// At least two positive numbers, in any order, whose distances on a log scale differ by a factor of 1.5 at most: 1, 3,
// 10 and 1, 2, 5, 10 are, 3, 30, 100 are not.
bool log_spaced(std::span<const double> values);

// Over one log-spaced grid of learning rates: the mean of min(l, l0) minus the smallest of those (Wortsman et al.
// 2023). A loss that is not finite counts as l0.
double lr_sensitivity(std::span<const double> losses, double l0);

struct SpikeRule {
  double deviations = 7;
  int64_t window = 1000;
};
// The share of the values with at least 128 before them that lie at least that many deviations away from the mean of
// the `window` values before; nothing where no value has as many before it. A value that is not finite counts as a
// spike and stays out of later means.
std::optional<double> spike_score(std::span<const double> values, const SpikeRule& rule);

// The one of two values that stands for both: the larger, or the least; a number before what is none.
template <class T>
T standing_for(T a, T b, bool least) {
  return std::isnan(a) || (least ? b < a : b > a) ? b : a;
}

double median(std::vector<double> values);  // of none: 0

}  // namespace keel::lab
