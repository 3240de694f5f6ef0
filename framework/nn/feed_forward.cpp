#include "framework/nn/feed_forward.h"

namespace keel::nn {
namespace {

LinearSpec input_spec(const FeedForwardSpec& spec) {
  LinearSpec in{.names = {spec.name + ".up"},
                .outputs = {spec.width},
                .inputs = spec.hidden,
                .bias = spec.bias,
                .init = spec.init};
  if (ops::is_gated(spec.activation)) {
    in.names.insert(in.names.begin(), spec.name + ".gate");
    in.outputs.push_back(spec.width);
  }
  return in;
}

}  // namespace

FeedForward::FeedForward(ParameterSet& parameters, const FeedForwardSpec& feed_forward_spec)
    : spec(feed_forward_spec),
      in(parameters, input_spec(spec)),
      down(parameters, {.names = {spec.name + ".down"},
                        .outputs = {spec.hidden},
                        .inputs = spec.width,
                        .bias = spec.bias,
                        .init = spec.output_init}) {}

void FeedForward::refresh() {
  in.refresh();
  down.refresh();
}

void FeedForward::forward(Tensor y, Tensor x, Saved& saved, Context& context) const {
  saved.h = context.saved.take({x.size(0), in.outputs()}, context.activation);
  saved.a = context.saved.take_rows(x.size(0), width(), context.activation);
  in.forward(saved.h, x, context);
  ops::activation_forward(saved.a, saved.h, spec.activation);
  down.forward(y, saved.a, context);
}

void FeedForward::backward(Tensor dx, Tensor dy, Tensor x, const Saved& saved, Context& context) const {
  auto scope = context.scratch.scope();
  Tensor da = context.scratch.take_rows(saved.a.size(0), saved.a.size(1), context.activation);
  Tensor dh = context.scratch.take_rows(saved.h.size(0), saved.h.size(1), context.activation);
  down.backward(da, dy, saved.a, context);
  ops::activation_backward(dh, da, saved.h, spec.activation);
  in.backward(dx, dh, x, context);
}

}  // namespace keel::nn
