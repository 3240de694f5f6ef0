#include "framework/ops/qk_norm/head_gains_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::ops::cpu {
namespace {

void largest_of_heads(Tensor largest, const ConstTensor& weight, int64_t d, float shift) {
  const bool shared = weight.elements() == d;
  for (int64_t h = 0; h < largest.elements(); ++h) {
    float most = weight.defined() ? 0 : 1;
    for (int64_t i = 0; weight.defined() && i < d; ++i)
      most = std::max(most, std::abs(weight.as<float>()[(shared ? 0 : h * d) + i] + shift));
    largest.as<float>()[h] = most;
  }
}

}  // namespace

void head_gains(const HeadGains& gains, const HeadGainWeights& weights) {
  largest_of_heads(gains.q, weights.q, weights.head_dim, weights.shift);
  largest_of_heads(gains.k, weights.k, weights.head_dim, weights.shift);
  const int64_t H = gains.q.elements(), group = H / gains.k.elements();
  for (int64_t h = 0; h < H; ++h) {
    float w = 1;
    if (weights.scale.defined()) w = std::abs(weights.scale.as<float>()[weights.scale.elements() == 1 ? 0 : h]);
    gains.scale.as<float>()[h] = w * std::abs(weights.initial_scale);
    gains.bound.as<float>()[h] = weights.factor > 0
                                     ? weights.factor * w * gains.q.as<float>()[h] * gains.k.as<float>()[h / group]
                                     : std::numeric_limits<float>::infinity();
  }
}

}  // namespace keel::ops::cpu
