#include "framework/nn/norm.h"

namespace keel::nn {

Norm::Norm(ParameterSet& parameters, const std::string& name, int64_t width, const NormSpec& spec)
    : options_(spec.pass) {
  weight_ = &parameters.declare({.name = name + ".weight",
                                 .shape = {width},
                                 .init = {Init::Kind::constant, options_.zero_centered ? 0.0 : 1.0},
                                 .decayed = spec.weight_decay});
  if (options_.kind == ops::NormKind::layer)
    bias_ = &parameters.declare({.name = name + ".bias", .shape = {width}, .decayed = spec.weight_decay});
}

ops::NormWeights Norm::weights() const {
  return {weight_->compute, bias_ ? bias_->compute : Tensor()};
}

void Norm::take(Saved& saved, int64_t rows, Context& context) const {
  saved.statistics.inverse = context.saved.take({rows}, DType::f32);
  if (options_.kind == ops::NormKind::layer) saved.statistics.mean = context.saved.take({rows}, DType::f32);
}

void Norm::forward(Tensor y, ConstTensor x, Saved& saved, Context& context) const {
  take(saved, x.size(0), context);
  ops::norm_forward({.y = y, .statistics = saved.statistics, .x = x, .weights = weights(), .options = options_});
}

void Norm::forward_added(Tensor y, const Addition& x, Saved& saved, Context& context) const {
  take(saved, x.sum.size(0), context);
  ops::norm_forward({y, x.sum, saved.statistics, x.residual, x.branch, weights(), options_});
}

void Norm::backward(Tensor dx, ConstTensor dy, ConstTensor x, const Saved& saved, bool accumulate) const {
  const ops::NormGradients gradients{weight_->gradient, bias_ ? bias_->gradient : Tensor()};
  ops::norm_backward({dx, gradients, dy, x, saved.statistics, weights(), options_, accumulate});
}

}  // namespace keel::nn
