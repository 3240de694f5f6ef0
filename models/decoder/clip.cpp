// Bounds on gains and logit scales after an update, and QK-clip (QKNORM.md section 6): after steps whose largest logit
// of a head passed tau, what bounds that head's logits shrinks by the same share.
#include <cmath>

#include "framework/ops/elementwise.h"
#include "framework/ops/qk_norm/qk_clip.h"
#include "models/decoder/decoder.h"

namespace keel::models {
namespace {

// Effective gains into [-limit, limit]; a zero-centred weight w means 1 + w.
void clamp_gains(nn::Parameter* weight, double limit, bool zero_centered) {
  const float shift = zero_centered ? 1 : 0;
  if (weight) ops::clamp(weight->master, float(-limit) - shift, float(limit) - shift);
}

// Effective weights, cut into equal rows, times a factor for each row, or one for all.
void scale_rows(const Tensor& weights, int64_t rows, ConstTensor factors, bool zero_centered) {
  ops::scale_rows(weights.reshaped({rows, weights.elements() / rows}), factors, zero_centered ? 1 : 0);
}

// factors [H of this rank]; smallest [1] of the layer over all ranks, for what all heads share. Returns whether it
// scaled weights of a product.
bool clip_layer(nn::Attention& attention, ConstTensor factors, ConstTensor smallest) {
  const nn::QkNorm& norm = attention.qk_norm;
  const int64_t H = attention.heads();
  if (norm.pass().kind == ops::QkNormKind::none) {
    scale_rows(attention.qkv.weights[0]->master, H, factors, false);
    if (!attention.qkv.biases.empty()) scale_rows(attention.qkv.biases[0]->master, H, factors, false);
    return true;
  }
  nn::Parameter *scale = attention.logit_scale, *gains = norm.q_weight;
  if (scale && attention.spec.logit_scale == nn::LogitScaleKind::per_head) {
    scale_rows(scale->master, H, factors, false);
  } else if (gains) {
    const bool shared = gains->spec.shape.dims() == 1;
    scale_rows(gains->master, shared ? 1 : H, shared ? smallest : factors, norm.pass().zero_centered);
  } else {
    require(scale, "{}: QK-clip has nothing to scale", attention.spec.name);  // launch refuses such a config
    scale_rows(scale->master, 1, smallest, false);
  }
  return false;
}

}  // namespace

bool Decoder::clip_weights(ConstTensor factors) {
  const QkNormConfig& qk = config_.attention.qk_norm;
  bool changed_products = false;
  if (factors.defined()) {
    ops::smallest_of_rows(least_factor_, factors);
    ops::scale(least_factor_, -1);
    layout_.group->maximum(least_factor_);
    ops::scale(least_factor_, -1);
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      changed_products |=
          clip_layer(blocks_[layer]->attention, factors.row(layer), least_factor_.tensor.slice(0, layer, layer + 1));
  }
  for (auto& block : blocks_) {
    if (qk.clip_weight) {
      clamp_gains(block->attention.qk_norm.q_weight, *qk.clip_weight, qk.zero_centered);
      clamp_gains(block->attention.qk_norm.k_weight, *qk.clip_weight, qk.zero_centered);
    }
    if (config_.attention.logit_scale.clip && block->attention.logit_scale)
      clamp_gains(block->attention.logit_scale,
                  *config_.attention.logit_scale.clip / std::abs(block->attention.spec.initial_scale), false);
  }
  return changed_products;
}

}  // namespace keel::models
