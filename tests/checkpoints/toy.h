// A model of a few weights for runs that save and resume: loss per token = |w|^2 / 2.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/toy_model.h"

namespace keel::checkpoints {

class Toy : public keel::testing::ToyModel {
 public:
  explicit Toy(nn::AxisPosition tensor = {}, int64_t weights = 8) {
    parameters_.declare({.name = "w", .shape = {weights}, .init = {.kind = nn::Init::Kind::normal, .value = 1}});
    parameters_.allocate({.tensor = tensor});
    parameters_.initialise(1);
    telemetry_ = {.largest_logit = largest_, .heads = 1, .kv_heads = 1};
  }
  void refresh() override {}
  void begin_step() override {}
  // A loss of the weights and of a convention that no checksum sees.
  void evaluate(Tensor sums, const nn::TokenBatch&) override {
    sums.as<double>()[0] += std::abs(parameters_.all().front().master.as<float>()[0]) + convention;
    sums.as<double>()[2] += 1;
  }
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override {
    const auto counted = double(batch.targets.elements());
    const auto* tokens = batch.tokens.as<int32_t>();
    const bool poisoned = std::count(tokens, tokens + batch.tokens.elements(), poison) > 0;
    const float factor =
        poisoned ? std::numeric_limits<float>::quiet_NaN() : *options.factor.as<float>() * float(counted);
    nn::Parameter& w = parameters_.all().front();
    auto* gradient = w.gradient.as<float>();
    const auto* weights = w.master.as<float>();
    for (int64_t i = 0; i < w.master.elements(); ++i) gradient[i] += factor * weights[i];
    add(sums, {.loss = counted, .counted = counted, .finite = counted});
  }

  double convention = 1;
  int32_t poison = -1;  // a batch with this token has a gradient that is NaN

 private:
  OwnedTensor largest_{{1, 1}, DType::f32};
};

}  // namespace keel::checkpoints
