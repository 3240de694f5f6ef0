// Cross-entropy of rows of raw logits in double, all columns at hand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace keel::reference {

using Values = std::vector<double>;

struct CrossEntropy {
  size_t columns = 0;     // of a row, padding included
  size_t vocabulary = 0;  // the first so many are real
  double softcap = 0, label_smoothing = 0, z_loss = 0;
  std::vector<int32_t> targets;

  double capped(double logit) const { return softcap > 0 ? softcap * std::tanh(logit / softcap) : logit; }
};

struct CrossEntropyLoss {
  double loss = 0, z_loss = 0;
};

inline double log_sum_exp(const CrossEntropy& ce, const double* row) {
  double maximum = ce.capped(row[0]), sum = 0;
  for (size_t i = 0; i < ce.vocabulary; ++i) maximum = std::max(maximum, ce.capped(row[i]));
  for (size_t i = 0; i < ce.vocabulary; ++i) sum += std::exp(ce.capped(row[i]) - maximum);
  return maximum + std::log(sum);
}

inline CrossEntropyLoss cross_entropy(const CrossEntropy& ce, const Values& logits) {
  CrossEntropyLoss total;
  for (size_t row = 0; row < ce.targets.size(); ++row) {
    if (ce.targets[row] < 0) continue;
    const double* own = &logits[row * ce.columns];
    double lse = log_sum_exp(ce, own), mean = 0;
    for (size_t i = 0; i < ce.vocabulary; ++i) mean += ce.capped(own[i]) / double(ce.vocabulary);
    total.loss += lse - (1 - ce.label_smoothing) * ce.capped(own[ce.targets[row]]) - ce.label_smoothing * mean;
    total.z_loss += ce.z_loss * lse * lse;
  }
  return total;
}

// d (loss + z_loss) / d logits.
inline Values cross_entropy_gradient(const CrossEntropy& ce, const Values& logits) {
  Values gradient(logits.size());
  for (size_t row = 0; row < ce.targets.size(); ++row) {
    if (ce.targets[row] < 0) continue;
    const double* own = &logits[row * ce.columns];
    double lse = log_sum_exp(ce, own);
    for (size_t i = 0; i < ce.vocabulary; ++i) {
      double softmax = std::exp(ce.capped(own[i]) - lse);
      double by_capped = (1 + 2 * ce.z_loss * lse) * softmax - ce.label_smoothing / double(ce.vocabulary);
      if (int64_t(i) == ce.targets[row]) by_capped -= 1 - ce.label_smoothing;
      double t = ce.softcap > 0 ? std::tanh(own[i] / ce.softcap) : 0;
      gradient[row * ce.columns + i] = by_capped * (1 - t * t);
    }
  }
  return gradient;
}

}  // namespace keel::reference
