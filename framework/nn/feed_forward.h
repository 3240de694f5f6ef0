// h = x W_in^T (+ b)      a = activation(h)      y = a W_down^T (+ b)
// Gated (SwiGLU, GeGLU): W_in is gate and up side by side, h [n, 2F]; plain (GELU): h [n, F]. a [n, F]; x, y [n, D].
#pragma once

#include <optional>

#include "framework/nn/linear.h"
#include "framework/ops/activation.h"

namespace keel::nn {

struct FeedForwardSpec {
  std::string name;  // "blocks.0.mlp": NAME.gate, NAME.up, NAME.down (plain: NAME.up, NAME.down)
  int64_t hidden = 0, width = 0;
  ops::ActivationKind activation = ops::ActivationKind::swiglu;
  bool bias = false;
  Init init, output_init;
};

class FeedForward {
 public:
  FeedForward(ParameterSet& parameters, const FeedForwardSpec& spec);

  struct Saved {
    Tensor h;  // [n, 2F] or [n, F]
  };

  void refresh();
  void forward(Tensor y, ConstTensor x, Saved& saved, Context& context) const;
  // Uses up what forward kept: dh lies where h lay.
  void backward(Tensor dx, ConstTensor dy, ConstTensor x, Saved& saved, Context& context) const;

  int64_t width() const { return down.weight->local[1]; }
  int64_t packed_bytes() const { return in.packed_bytes() + down.packed_bytes(); }

  const FeedForwardSpec spec;
  ColumnParallelLinear in;
  RowParallelLinear down;
};

}  // namespace keel::nn
