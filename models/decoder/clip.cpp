// Bounds on gains and logit scales after an update, and QK-clip (QKNORM.md section 6): after steps whose largest logit
// of a head passed tau, what bounds that head's logits shrinks by the same share.
#include <algorithm>
#include <cmath>

#include "models/decoder/decoder.h"

namespace keel::models {
namespace {

float smallest(std::span<const float> factors) {
  return *std::min_element(factors.begin(), factors.end());
}

// gain <- c * gain for `count` weights; a zero-centred weight w means 1 + w.
void scale_gains(float* weights, int64_t count, float c, bool zero_centered) {
  if (c == 1) return;  // 1 + w - 1 would round
  for (int64_t i = 0; i < count; ++i) weights[i] = zero_centered ? c * (1 + weights[i]) - 1 : c * weights[i];
}

void clamp_gains(nn::Parameter* weight, double limit, bool zero_centered) {
  if (!weight) return;
  const float shift = zero_centered ? 1 : 0, low = float(-limit) - shift, high = float(limit) - shift;
  float* w = weight->master.as<float>();
  for (int64_t i = 0; i < weight->local.elements(); ++i) w[i] = std::clamp(w[i], low, high);
}

// `smallest_of_layer`: over all ranks, for what all heads share.
bool clip_layer(nn::Attention& attention, std::span<const float> factors, float smallest_of_layer) {
  const nn::QkNorm& norm = attention.qk_norm;
  const int64_t H = attention.heads(), d = attention.spec.head_dim;
  const bool zero_centered = norm.pass().zero_centered;
  if (nn::Parameter* scale = attention.logit_scale) {
    float* w = scale->master.as<float>();
    for (int64_t i = 0; i < scale->local.elements(); ++i)
      w[i] *= scale->spec.shape[0] == 1 ? smallest_of_layer : factors[i];
    return false;
  }
  if (nn::Parameter* gains = norm.q_weight) {
    float* w = gains->master.as<float>();
    const bool shared = gains->spec.shape.dims() == 1;
    for (int64_t h = 0; h < (shared ? 1 : H); ++h)
      scale_gains(w + h * d, d, shared ? smallest_of_layer : factors[h], zero_centered);
    return false;
  }
  nn::Parameter* weight = attention.qkv.weights[0];
  const int64_t row = d * weight->local[1];
  for (int64_t h = 0; h < H; ++h) {
    scale_gains(weight->master.as<float>() + h * row, row, factors[h], false);
    if (!attention.qkv.biases.empty())
      scale_gains(attention.qkv.biases[0]->master.as<float>() + h * d, d, factors[h], false);
  }
  return true;
}

}  // namespace

bool Decoder::clip_weights(ConstTensor factors) {
  const QkNormConfig& qk = config_.attention.qk_norm;
  bool changed_products = false;
  if (factors.defined()) {
    const int64_t H = factors.size(1);
    auto of_layer = [&](int64_t layer) { return std::span(factors.as<float>() + layer * H, size_t(H)); };
    float* least = least_factor_.tensor.as<float>();
    for (int64_t layer = 0; layer < config_.layers; ++layer) least[layer] = -smallest(of_layer(layer));
    layout_.group->maximum(least_factor_);
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      changed_products |= clip_layer(blocks_[layer]->attention, of_layer(layer), -least[layer]);
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
