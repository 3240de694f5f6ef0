#include "models/decoder/parallelize.h"

namespace keel::models {
namespace {

using nn::Placement;

// KV heads fewer than ranks: R ranks hold the same KV head and each has a part of its gradient.
struct HeadShare {
  int64_t heads, kv_heads;
  int replicas;
};

HeadShare share(const DecoderConfig& c, int ranks) {
  const int64_t G = c.kv_heads();
  return {c.attention.heads / ranks, std::max<int64_t>(1, G / ranks), int(std::max<int64_t>(1, ranks / G))};
}

void place_attention(nn::Attention& attention, const HeadShare& own) {
  for (auto* parts : {&attention.qkv.weights, &attention.qkv.biases}) {
    for (size_t i = 0; i < parts->size(); ++i)
      (*parts)[i]->placement = Placement::sharded(0, i == 0 ? 1 : own.replicas);
  }
  // A gain per head lies with its heads; a shared one has a part of its gradient on every rank.
  auto gain = [](nn::Parameter* weight, int replicas) {
    if (weight)
      weight->placement = weight->spec.shape.dims() == 2 ? Placement::sharded(0, replicas) : Placement::partial();
  };
  gain(attention.qk_norm.q_weight, 1);
  gain(attention.qk_norm.k_weight, own.replicas);
  if (attention.logit_scale) {
    const bool per_head = attention.spec.logit_scale == nn::LogitScaleKind::per_head;
    attention.logit_scale->placement = per_head ? Placement::sharded(0) : Placement::partial();
  }
  attention.output.weight->placement = Placement::sharded(1);
  attention.qk_norm.set_heads(own.heads, own.kv_heads, own.replicas);
}

void place_feed_forward(nn::FeedForward& mlp) {
  for (nn::Parameter* weight : mlp.in.weights) weight->placement = Placement::sharded(0);
  for (nn::Parameter* bias : mlp.in.biases) bias->placement = Placement::sharded(0);
  mlp.down.weight->placement = Placement::sharded(1);
}

}  // namespace

void check_tensor_ranks(const DecoderConfig& c, int64_t ranks, const config::Node& place) {
  auto divides = [&](int64_t size, const char* what) {
    if (size % ranks != 0) throw place.error("{} ranks do not divide {} {}", ranks, size, what);
  };
  divides(c.attention.heads, "heads (model.attention.heads)");
  divides(c.ffn, "features (model.ffn)");
  divides(c.padded_vocab(), "ids (model.vocab padded to model.pad_vocab_to)");
  const int64_t G = c.kv_heads();
  if (G % ranks != 0 && ranks % G != 0)
    throw place.error("{} ranks and {} KV heads (model.attention.kv_heads): one must divide the other", ranks, G);
}

void parallelize(Decoder& decoder, int tensor_size) {
  const DecoderConfig& config = decoder.config();
  check_tensor_ranks(config, tensor_size, config::Node()["parallel"]["tensor"]);
  const HeadShare own = share(config, tensor_size);
  decoder.embedding().table->placement = Placement::sharded(0);
  decoder.classifier().table->placement = Placement::sharded(0);
  for (auto& block : decoder.blocks()) {
    place_attention(block->attention, own);
    place_feed_forward(block->mlp);
  }
}

}  // namespace keel::models
