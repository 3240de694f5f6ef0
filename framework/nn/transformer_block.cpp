#include "framework/nn/transformer_block.h"

#include "framework/ops/elementwise.h"

namespace keel::nn {

TransformerBlock::TransformerBlock(ParameterSet& parameters, const BlockSpec& block_spec)
    : spec(block_spec),
      attention_stream(parameters, spec.name + ".attention", spec.attention.hidden, spec.placement, spec.norm),
      attention(parameters, spec.attention),
      mlp_stream(spec.parallel ? std::optional<Sublayer>()
                               : std::optional<Sublayer>(std::in_place, parameters, spec.name + ".mlp",
                                                         spec.attention.hidden, spec.placement, spec.norm)),
      mlp(parameters, spec.mlp) {}

void TransformerBlock::refresh() {
  attention.refresh();
  mlp.refresh();
}

void TransformerBlock::forward(ResidualStream& stream, const Inputs& inputs, Saved& saved, Context& context) const {
  if (spec.recompute != Recompute::block) return forward_parts(stream, inputs, saved, context);
  saved.in = stream;
  saved.in.branch = context.saved.take(stream.branch.shape(), context.activation);
  if (stream.pending) ops::convert(saved.in.branch, stream.branch);
  ResidualStream out = stream;
  out.residual = context.saved.take(stream.residual.shape(), stream.residual.dtype());
  {
    auto scope = context.saved.scope();
    forward_parts(stream, inputs, saved, context);
    ops::convert(out.residual, stream.residual);
  }
  stream.residual = out.residual;
}

void TransformerBlock::forward_parts(ResidualStream& stream, const Inputs& inputs, Saved& saved,
                                     Context& context) const {
  Tensor x = attention_stream.open(stream, saved.attention_stream, context);
  Tensor y = attention_stream.output(stream, saved.attention_stream, context);
  {
    std::optional<Arena::Scope> given_back;  // what backward computes again
    if (spec.recompute == Recompute::attention) given_back.emplace(context.saved);
    attention.forward(y, x, inputs, saved.attention, context);
  }
  if (mlp_stream) {
    attention_stream.close(stream, saved.attention_stream, context);
    x = mlp_stream->open(stream, saved.mlp_stream, context);
    y = mlp_stream->output(stream, saved.mlp_stream, context);
    mlp.forward(y, x, saved.mlp, context);
    mlp_stream->close(stream, saved.mlp_stream, context);
  } else {
    auto scope = context.scratch.scope();
    Tensor beside = context.scratch.take(y.shape(), context.activation);
    mlp.forward(beside, x, saved.mlp, context);
    ops::add(y, y, beside);
    attention_stream.close(stream, saved.attention_stream, context);
  }
}

void TransformerBlock::backward(Tensor d, const Inputs& inputs, Saved& saved, std::array<Tensor, 2> buffers,
                                Context& context) const {
  auto scope = context.saved.scope();  // what is computed again ends with this block
  if (spec.recompute == Recompute::block) {
    ResidualStream again = saved.in;
    forward_parts(again, {inputs.positions, inputs.batch}, saved, context);
  }
  auto [dy_buffer, dx] = buffers;
  if (mlp_stream) {
    Tensor dy = mlp_stream->close_backward(dy_buffer, d, saved.mlp_stream);
    mlp.backward(dx, dy, saved.mlp_stream.x, saved.mlp, context);
    mlp_stream->open_backward(d, dx, saved.mlp_stream);
    dy = attention_stream.close_backward(dy_buffer, d, saved.attention_stream);
    attention_backward(dx, dy, inputs, saved, context);
  } else {
    auto inner = context.scratch.scope();
    Tensor beside = context.scratch.take(dx.shape(), context.activation);
    Tensor dy = attention_stream.close_backward(dy_buffer, d, saved.attention_stream);
    mlp.backward(beside, dy, saved.attention_stream.x, saved.mlp, context);
    attention_backward(dx, dy, inputs, saved, context);
    ops::add(dx, dx, beside);
  }
  attention_stream.open_backward(d, dx, saved.attention_stream);
}

void TransformerBlock::attention_backward(Tensor dx, Tensor dy, const Inputs& inputs, Saved& saved,
                                          Context& context) const {
  auto scope = context.saved.scope();
  if (spec.recompute == Recompute::attention)
    attention.forward_heads(saved.attention_stream.x, {inputs.positions, inputs.batch}, saved.attention, context);
  attention.backward(dx, dy, inputs, saved.attention, context);
}

}  // namespace keel::nn
