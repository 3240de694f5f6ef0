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
// dx, of x's shape, is overwritten; it may be the same memory as x.
void activation_backward(Tensor dx, ConstTensor dy, ConstTensor x, ActivationKind kind);

}  // namespace keel::ops
