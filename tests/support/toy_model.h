// What tests of the loop and its hooks need of a model beside its parameters and one step: nothing of the rest.
#pragma once

#include "framework/nn/model.h"

namespace keel::testing {

class ToyModel : public nn::Model {
 public:
  nn::ParameterSet& parameters() override { return parameters_; }
  const nn::ParameterSet& parameters() const override { return parameters_; }
  void evaluate(Tensor, const nn::TokenBatch&) override {}
  const nn::ModelTelemetry& telemetry() const override { return telemetry_; }
  bool clip_weights(ConstTensor) override { return false; }

 protected:
  static void add(Tensor to, const ops::CrossEntropySums& sums) {
    double values[4];
    sums.put(values);
    for (int i = 0; i < 4; ++i) to.as<double>()[i] += values[i];
  }

  nn::ParameterSet parameters_;
  nn::ModelTelemetry telemetry_;
};

}  // namespace keel::testing
