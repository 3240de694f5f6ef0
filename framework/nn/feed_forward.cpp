#include "framework/nn/feed_forward.h"

namespace keel::nn {
namespace {

LinearSpec input_spec(const FeedForwardSpec& spec) {
  LinearSpec in{.names = {spec.name + ".up"},
                .outputs = {spec.width},
                .inputs = spec.hidden,
                .bias = spec.bias,
                .init = spec.init,
                .wide = {.y = true, .dy = true}};
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
                        .init = spec.output_init,
                        .wide = {.x = true, .dx = true}}) {}

void FeedForward::refresh() {
  in.refresh();
  down.refresh();
}

void FeedForward::forward(Tensor y, ConstTensor x, Saved& saved, Context& context) const {
  auto scope = context.scratch.scope();
  saved.h = context.saved.take_rows(x.size(0), in.outputs(), context.activation);
  Tensor a = context.scratch.take_rows(x.size(0), width(), context.activation);
  in.forward(saved.h, x);
  ops::activation_forward(a, saved.h, spec.activation);
  down.forward(y, a, context);
}

// The activation's backward makes a again, in da's place, so that a need not be kept.
void FeedForward::backward(Tensor dx, ConstTensor dy, ConstTensor x, Saved& saved, Context& context) const {
  auto scope = context.scratch.scope();
  Tensor da = context.scratch.take_rows(x.size(0), width(), context.activation), a = da, dh = saved.h;
  down.backward_input(da, dy);
  ops::activation_backward(dh, a, da, saved.h, spec.activation);
  down.backward_weight(dy, a);
  in.backward(dx, dh, x, context);
}

}  // namespace keel::nn
