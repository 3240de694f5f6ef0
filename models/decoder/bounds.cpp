#include "models/decoder/bounds.h"

#include <cmath>

#include "models/decoder/block_specs.h"

namespace keel::models {
namespace {

// The largest absolute effective gain of one head.
double largest_gain(const std::vector<float>& stored, int64_t head, int64_t d, bool zero_centered) {
  if (stored.empty()) return 1;
  const bool shared = int64_t(stored.size()) == d;
  const float* gains = stored.data() + (shared ? 0 : head * d);
  double largest = 0;
  for (int64_t i = 0; i < d; ++i) largest = std::max(largest, std::abs(double(gains[i]) + (zero_centered ? 1 : 0)));
  return largest;
}

// What the rotation makes of |q| |k| after the norm: m^2, but features that do not turn keep their size.
double rotation_factor(const DecoderConfig& config, int64_t layer) {
  if (config.attention.qk_norm.placement == QkPlacement::after_rope) return 1;
  const double m = rope_amplitude(config, layer);
  return config.rotated_features() < config.head_dim() ? std::max(1.0, m * m) : m * m;
}

void check_size(const char* what, size_t size, int64_t shared, int64_t per_head) {
  require(size == 0 || int64_t(size) == shared || int64_t(size) == per_head, "{} values of {}, not {} or {}", size,
          what, shared, per_head);
}

}  // namespace

double bound_factor(const DecoderConfig& config, int64_t layer) {
  const ops::QkNormKind kind = config.qk_kind(layer);
  if (kind == ops::QkNormKind::none) return 0;
  double factor = std::abs(config.initial_scale(layer)) * rotation_factor(config, layer);
  if (kind == ops::QkNormKind::l2) return factor;
  factor *= double(config.head_dim());
  if (config.attention.qk_norm.scope == ops::QkNormScope::head) return factor;
  return factor * std::sqrt(double(config.attention.heads * config.kv_heads()));
}

std::vector<double> logit_bounds(const DecoderConfig& config, int64_t layer, const StoredGains& stored) {
  const double factor = bound_factor(config, layer);
  if (factor == 0) return {};
  const QkNormConfig& qk = config.attention.qk_norm;
  const int64_t H = config.attention.heads, G = config.kv_heads(), d = config.head_dim();
  check_size("query gains", stored.q.size(), d, H * d);
  check_size("key gains", stored.k.size(), d, G * d);
  check_size("scales", stored.scale.size(), 1, H);
  std::vector<double> bounds;
  for (int64_t h = 0; h < H; ++h) {
    const double w = stored.scale.empty() ? 1 : stored.scale[stored.scale.size() == 1 ? 0 : size_t(h)];
    bounds.push_back(factor * std::abs(w) * largest_gain(stored.q, h, d, qk.zero_centered) *
                     largest_gain(stored.k, h / (H / G), d, qk.zero_centered));
  }
  return bounds;
}

}  // namespace keel::models
