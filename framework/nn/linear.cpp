#include "framework/nn/linear.h"

#include "framework/ops/bias.h"

namespace keel::nn {

Linear::Linear(ParameterSet& parameters, const LinearSpec& spec) : wide_(spec.wide) {
  for (size_t i = 0; i < spec.names.size(); ++i)
    weights.push_back(&parameters.declare({.name = spec.names[i] + ".weight",
                                           .shape = {spec.outputs[i], spec.inputs},
                                           .init = spec.init,
                                           .decayed = true,
                                           .product = true,
                                           .beside = i > 0}));
  if (!spec.bias) return;
  for (size_t i = 0; i < spec.names.size(); ++i)
    biases.push_back(
        &parameters.declare({.name = spec.names[i] + ".bias", .shape = {spec.outputs[i]}, .beside = i > 0}));
}

void Linear::refresh() {
  packed_.refresh(stacked(weights, &Parameter::compute), wide_);
}

int64_t Linear::outputs() const {
  int64_t sum = 0;
  for (const Parameter* weight : weights) sum += weight->local[0];
  return sum;
}

void Linear::forward(Tensor y, ConstTensor x) const {
  ops::linear_forward(y, x, packed_, biases.empty() ? Tensor() : stacked(biases, &Parameter::compute));
}

void Linear::backward(Tensor dx, ConstTensor dy, ConstTensor x) const {
  backward_weight(dy, x);
  backward_input(dx, dy);
}

void Linear::backward_weight(ConstTensor dy, ConstTensor x) const {
  ops::linear_backward_weight(stacked(weights, &Parameter::gradient), dy, x);
  if (!biases.empty()) ops::linear_backward_bias(stacked(biases, &Parameter::gradient), dy);
}

void Linear::backward_input(Tensor dx, ConstTensor dy) const {
  ops::linear_backward_input(dx, dy, packed_);
}

void ColumnParallelLinear::backward(Tensor dx, ConstTensor dy, ConstTensor x, Context& context) const {
  Linear::backward(dx, dy, x);
  context.group->enter_backward(dx);
}

RowParallelLinear::RowParallelLinear(ParameterSet& parameters, const LinearSpec& spec)
    : product_(parameters, [&] {
        LinearSpec without = spec;
        without.bias = false;
        return without;
      }()) {
  weight = product_.weights.front();
  if (spec.bias) bias = &parameters.declare({.name = spec.names.front() + ".bias", .shape = {spec.outputs.front()}});
}

void RowParallelLinear::forward(Tensor y, ConstTensor x, Context& context) const {
  product_.forward(y, x);
  context.group->leave_forward(y);
  if (bias) ops::add_bias(y, bias->compute);
}

void RowParallelLinear::backward(Tensor dx, ConstTensor dy, ConstTensor x) const {
  backward_input(dx, dy);
  backward_weight(dy, x);
}

void RowParallelLinear::backward_input(Tensor dx, ConstTensor dy) const {
  if (bias) ops::linear_backward_bias(bias->gradient, dy);
  product_.backward_input(dx, dy);
}

void RowParallelLinear::backward_weight(ConstTensor dy, ConstTensor x) const {
  product_.backward_weight(dy, x);
}

}  // namespace keel::nn
