#include "models/decoder/bound_hook.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/tensor/copy.h"
#include "models/decoder/bounds.h"

namespace keel::models {
namespace {

constexpr float kUnbounded = std::numeric_limits<float>::infinity();

float largest(std::span<const float> weights, float shift) {
  float largest = 0;
  for (float w : weights) largest = std::max(largest, std::abs(w + shift));
  return largest;
}

}  // namespace

BoundHook::BoundHook(Decoder& decoder, parallel::Mesh& mesh, train::RunFilesHook& files)
    : decoder_(decoder),
      files_(files),
      heads_(mesh),
      own_({decoder.config().layers, decoder.blocks()[0]->attention.heads()}, DType::f32) {
  for (int64_t layer = 0; layer < decoder.config().layers; ++layer)
    factors_.push_back(bound_factor(decoder.config(), layer));
}

train::Verdict BoundHook::before_update(const train::StepReport& report) {
  if (std::all_of(factors_.begin(), factors_.end(), [](double factor) { return factor == 0; })) return {};
  for (int64_t layer = 0; layer < decoder_.config().layers; ++layer) bound_layer(layer);
  heads_.gather(whole_, own_, decoder_.config().attention.heads, comm::Reduction::max);
  files_.telemetry("logit_bound", report.step, report.layers, whole_);
  double used = 0;
  for (size_t head = 0; head < whole_.size(); ++head)
    if (std::isfinite(whole_[head])) used = std::max(used, double(report.largest_logit[head]) / whole_[head]);
  files_.step_value("bound_used", used);
  return {};
}

// A rank that owns a query head holds the gains of the KV head that it meets.
void BoundHook::bound_layer(int64_t layer) {
  const nn::Attention& attention = decoder_.blocks()[size_t(layer)]->attention;
  const int64_t H = attention.heads(), G = attention.kv_heads(), d = attention.spec.head_dim;
  float* bounds = own_.tensor.as<float>() + layer * H;
  if (factors_[size_t(layer)] == 0) return void(std::fill_n(bounds, H, kUnbounded));
  const auto shift = float(attention.qk_norm.pass().zero_centered);
  std::fill_n(bounds, H, float(factors_[size_t(layer)]));
  // Multiplies in the largest of each `width` weights; where the weight has one row, it is every head's.
  auto multiply = [&](const nn::Parameter* weight, int64_t width, int64_t heads_per_row, float shift) {
    if (!weight) return;
    gains_.resize(size_t(weight->local.elements()));
    copy(Tensor(gains_.data(), weight->local, DType::f32), weight->compute);
    const bool shared = weight->local.elements() == width;
    for (int64_t h = 0; h < H; ++h)
      bounds[h] *=
          largest(std::span(gains_).subspan(shared ? 0 : size_t(h / heads_per_row * width), size_t(width)), shift);
  };
  multiply(attention.qk_norm.q_weight, d, 1, shift);
  multiply(attention.qk_norm.k_weight, d, H / G, shift);
  multiply(attention.logit_scale, 1, 1, 0);
}

}  // namespace keel::models
