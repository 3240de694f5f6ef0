// The residual stream around one sub-layer f (attention, feed-forward or both side by side):
//
//   pre        r' = r + b      x = N(r')      b' = f(x)
//   post       r' = r + b      x = r'         b' = N'(f(x))          (OLMo 2)
//   sandwich   r' = r + b      x = N(r')      b' = N'(f(x))          (Gemma)
//
// The stream between sub-layers is a pair: the residual r and the last branch b that is not yet added, so that the
// addition and the norm after it are one pass. Gradients: r and b of one stream have the same one, d.
#pragma once

#include <optional>

#include "framework/nn/norm.h"

namespace keel::nn {

enum class NormPlacement { pre, post, sandwich };

struct ResidualStream {
  Tensor residual;       // r [n, D], in the residual type
  Tensor branch;         // b [n, D], in the activations' type
  bool pending = false;  // whether b waits to be added; not at the start of the model
};

class Sublayer {
 public:
  // Norms NAME_norm (before) and NAME_post_norm (after), as the placement asks.
  Sublayer(ParameterSet& parameters, const std::string& name, int64_t width, NormPlacement placement,
           const NormSpec& norm);

  struct Saved {
    Tensor residual;  // r' [n, D]
    Tensor x;         // [n, D]
    Tensor y;         // f(x) [n, D]; only with a norm after
    Norm::Saved before, after;
  };

  // Adds the pending branch and gives f's input.
  Tensor open(ResidualStream& stream, Saved& saved, Context& context) const;
  // Where f writes its output: the stream's branch itself, or what the norm after reads.
  Tensor output(const ResidualStream& stream, Saved& saved, Context& context) const;
  // Makes f's output the pending branch.
  void close(ResidualStream& stream, Saved& saved, Context& context) const;

  // dy, the gradient of f's output, from the stream's gradient d. `buffer` [n, D] in the activations' type.
  Tensor close_backward(Tensor buffer, Tensor d, const Saved& saved) const;
  // d of the stream before, in place: d += the gradient that came back through f's input.
  void open_backward(Tensor d, ConstTensor dx, const Saved& saved) const;

 private:
  std::optional<Norm> before_, after_;
};

}  // namespace keel::nn
