// Gated and plain activations of the feed-forward layer.
//   swiglu: y = silu(gate) * up        geglu: y = gelu(gate) * up        gelu: y = gelu(x)
// silu(x) = x / (1 + exp(-x)); gelu is the tanh form (Hendrycks & Gimpel 2016), as Gemma uses it.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

enum class ActivationKind { swiglu, geglu, gelu };

// Whether the input row holds gate and up side by side.
constexpr bool is_gated(ActivationKind kind) {
  return kind != ActivationKind::gelu;
}

// y [n, F] from x [n, 2F] = {gate, up}, or x [n, F] for gelu.
void activation_forward(Tensor y, ConstTensor x, ActivationKind kind);
// dx, of x's shape, and y once more, the same bits as forward's, so that forward need not keep it for the weight
// gradient of the product that follows. dx may be x's memory and y may be dy's.
void activation_backward(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind);

}  // namespace keel::ops
