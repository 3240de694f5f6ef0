// AdamW (Loshchilov & Hutter 2019, algorithm 2) in double, one element at a time.
#pragma once

#include <cmath>

#include "framework/ops/update/adamw.h"

namespace keel::reference {

struct AdamwElement {
  double weight = 0;
  double moment1 = 0;
  double moment2 = 0;
};

// `gradient` is scaled already.
inline AdamwElement adamw(AdamwElement at, double g, const ops::AdamwStep& step, const ops::AdamwOptions& options) {
  double b1 = options.beta1, b2 = options.beta2;
  at.moment1 = b1 * at.moment1 + (1 - b1) * g;
  at.moment2 = b2 * at.moment2 + (1 - b2) * g * g;
  double corrected1 = at.moment1 / (1 - std::pow(b1, double(step.updates)));
  double corrected2 = at.moment2 / (1 - std::pow(b2, double(step.updates)));
  at.weight -= step.lr * corrected1 / (std::sqrt(corrected2) + options.eps) + step.decay * at.weight;
  return at;
}

}  // namespace keel::reference
