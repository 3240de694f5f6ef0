// One layer of a decoder: attention and feed-forward, each around the residual stream (sublayer.h), or side by side:
//
//   in turn    x1 = open(stream)   b1 = attention(x1)   x2 = open(stream)   b2 = mlp(x2)
//   parallel   x1 = open(stream)   b1 = attention(x1) + mlp(x1)              (ViT-22B, GPT-J)
#pragma once

#include "framework/nn/attention.h"
#include "framework/nn/feed_forward.h"
#include "framework/nn/sublayer.h"

namespace keel::nn {

// What backward computes again instead of keeping: nothing, the attention up to its output product, or the whole block.
// Gradients are the same bits in all three.
enum class Recompute { none, attention, block };

struct BlockSpec {
  std::string name;  // "blocks.0"
  AttentionSpec attention;
  FeedForwardSpec mlp;
  NormPlacement placement = NormPlacement::pre;
  NormSpec norm;
  bool parallel = false;
  Recompute recompute = Recompute::none;
};

class TransformerBlock {
 public:
  TransformerBlock(ParameterSet& parameters, const BlockSpec& spec);

  struct Saved {
    ResidualStream in;  // recompute block: forward's input, with a copy of the branch
    Sublayer::Saved attention_stream;
    Attention::Saved attention;
    Sublayer::Saved mlp_stream;
    FeedForward::Saved mlp;
  };

  using Inputs = Attention::Inputs;

  void refresh();
  void forward(ResidualStream& stream, const Inputs& inputs, Saved& saved, Context& context) const;
  // d [n, D] in the residual type: the stream's gradient, from after the block to before it, in place. `buffers` are
  // two tensors [n, D] in the activations' type.
  void backward(Tensor d, const Inputs& inputs, Saved& saved, std::array<Tensor, 2> buffers, Context& context) const;

  int64_t packed_bytes() const { return attention.packed_bytes() + mlp.packed_bytes(); }

  const BlockSpec spec;
  Sublayer attention_stream;
  Attention attention;
  std::optional<Sublayer> mlp_stream;  // absent where the parts are side by side
  FeedForward mlp;

 private:
  void forward_parts(ResidualStream& stream, const Inputs& inputs, Saved& saved, Context& context) const;
  void attention_backward(Tensor dx, Tensor dy, const Inputs& inputs, Saved& saved, Context& context) const;
};

}  // namespace keel::nn
