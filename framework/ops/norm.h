// RMS norm and layer norm over the last dim, fused with the residual addition before them.
// rms:   y = x * r * gain,          r = 1/sqrt(mean(x^2) + eps)                     (Zhang & Sennrich 2019)
// layer: y = (x - m) * r * gain + bias, r = 1/sqrt(mean((x - m)^2) + eps)           (Ba et al. 2016)
// gain is the stored weight, or 1 + weight with zero_centered. Statistics and gains are fp32.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

enum class NormKind { rms, layer };

struct NormOptions {
  NormKind kind = NormKind::rms;
  float eps = 1e-6f;
  bool zero_centered = false;
};

struct NormWeights {
  ConstTensor weight;  // [D] fp32
  ConstTensor bias;    // [D] fp32, layer only; may be undefined
};

// Per row: r, and for layer the mean. Saved by forward, read by backward.
struct NormStatistics {
  Tensor inverse;  // [n] fp32
  Tensor mean;     // [n] fp32; undefined for rms
};

// y [n, D] = norm(x [n, D]). With a branch: sum = x + branch and y = norm(sum), in one pass; sum may be the same memory
// as x. x and sum have one element type (the residual stream's), branch and y another (the activations').
struct NormForward {
  Tensor y, sum = {};
  NormStatistics statistics;
  ConstTensor x, branch = {};
  NormWeights weights;
  NormOptions options = {};
};
void norm_forward(const NormForward& call);

struct NormGradients {
  Tensor d_weight;  // [D] fp32, accumulated
  Tensor d_bias;    // [D] fp32, accumulated; undefined where there is no bias
};

// dx [n, D] = the norm's input gradient, plus `dx` itself when `accumulate` (the residual's own gradient, which flows
// past the norm). x is what forward normalised: its sum where it had a branch.
struct NormBackward {
  Tensor dx;
  NormGradients gradients;
  ConstTensor dy, x;
  NormStatistics statistics;
  NormWeights weights;
  NormOptions options = {};
  bool accumulate = false;
};
void norm_backward(const NormBackward& call);

}  // namespace keel::ops
