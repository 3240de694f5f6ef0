// y = norm(x) * gain (+ bias)     x, y [n, D]; RMS or layer norm, framework/ops/norm.h gives the formula.
#pragma once

#include "framework/nn/context.h"
#include "framework/ops/norm.h"

namespace keel::nn {

struct NormSpec {
  ops::NormOptions pass;
  bool weight_decay = false;
};

class Norm {
 public:
  // Parameters NAME.weight [D], and NAME.bias [D] for layer norm.
  Norm(ParameterSet& parameters, const std::string& name, int64_t width, const NormSpec& spec);

  struct Saved {
    ops::NormStatistics statistics;  // [n], per row
  };

  void forward(Tensor y, ConstTensor x, Saved& saved, Context& context) const;
  // sum = residual + branch, y = norm(sum). `sum` may be `residual`.
  struct Addition {
    Tensor sum;
    ConstTensor residual, branch;
  };
  void forward_added(Tensor y, const Addition& x, Saved& saved, Context& context) const;
  // dx = (accumulate ? dx : 0) + the gradient through the norm. x is the norm's input.
  void backward(Tensor dx, ConstTensor dy, ConstTensor x, const Saved& saved, bool accumulate) const;

 private:
  ops::NormWeights weights() const;
  void take(Saved& saved, int64_t rows, Context& context) const;

  ops::NormOptions options_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace keel::nn
