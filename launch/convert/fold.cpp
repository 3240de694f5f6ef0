// keel convert --fold: s = g0 w[h] (gamma_q q^) . (gamma_k k^) = g0' ((g0 w[h] / g0' gamma_q) q^) . (gamma_k k^)
#include <algorithm>
#include <cmath>

#include "framework/base/log.h"
#include "launch/convert/loaded_state.h"
#include "launch/convert/retrofit.h"

namespace keel {
namespace {

using checkpoints::TensorKind;

FullConfig folded_config(const FullConfig& config, const std::string& path) {
  const models::QkNormConfig& qk = config.model.attention.qk_norm;
  if (qk.kind == ops::QkNormKind::none) throw input_error("{} has no QK-Norm: there are no gains to fold into", path);
  if (qk.layers != models::QkLayers::all) throw input_error("{}: qk_norm.layers leaves layers without gains", path);
  models::DecoderConfig folded = config.model;
  models::AttentionConfig& attention = folded.attention;
  attention.qk_norm.weight = nn::QkWeight::per_head;
  attention.qk_norm.zero_centered = false;
  attention.qk_norm.weight_init = 1;
  attention.qk_norm.clip_weight = {};
  attention.logit_scale = {.kind = nn::LogitScaleKind::fixed};
  return with_model(config, folded, path);
}

// Gains of one side as they act, [heads, d]: shared or absent ones spread out, 1 + w as one number.
std::vector<float> effective(const nn::Parameter* weight, int64_t heads, int64_t d, bool zero_centered) {
  std::vector<float> gains(size_t(heads * d), 1.f);
  for (size_t i = 0; weight && i < gains.size(); ++i)
    gains[i] = weight->master.as<float>()[i % size_t(weight->local.elements())] + (zero_centered ? 1.f : 0.f);
  return gains;
}

class Fold {
 public:
  Fold(LoadedState& from, LoadedState& to) : from_(from), to_(to), qk_(from.config.model.attention.qk_norm) {}

  void layer(int64_t layer) {
    const nn::Attention& attention = from_.decoder.blocks()[size_t(layer)]->attention;
    const models::DecoderConfig& c = from_.config.model;
    const double target = to_.config.model.initial_scale(layer);
    std::vector<double> factors(size_t(c.attention.heads), c.initial_scale(layer) / target);
    if (const nn::Parameter* scale = attention.logit_scale)
      for (size_t h = 0; h < factors.size(); ++h)
        factors[h] *= scale->master.as<float>()[scale->local.elements() == 1 ? 0 : h];
    side(attention.qk_norm.q_weight, to_.parameter(layer, "attention.q_norm.weight"), factors);
    side(attention.qk_norm.k_weight, to_.parameter(layer, "attention.k_norm.weight"),
         std::vector<double>(size_t(c.kv_heads()), 1));
  }

 private:
  // `factors`: of each head. Moments follow where every gain had its own: a gain c times as large has a gradient c
  // times as small.
  void side(const nn::Parameter* old, nn::Parameter& folded, const std::vector<double>& factors) {
    const int64_t heads = int64_t(factors.size()), d = from_.config.model.head_dim();
    const std::vector<float> gains = effective(old, heads, d, qk_.zero_centered);
    const bool moments = to_.has_moments() && old && old->spec.shape == folded.spec.shape;
    for (int64_t i = 0; i < heads * d; ++i) {
      const double factor = factors[size_t(i / d)];
      folded.master.as<float>()[i] = float(gains[size_t(i)] * factor);
      if (!moments) continue;
      to_.moment(folded, TensorKind::moment1).as<float>()[i] =
          float(from_.moment(*old, TensorKind::moment1).as<float>()[i] / factor);
      to_.moment(folded, TensorKind::moment2).as<float>()[i] =
          float(from_.moment(*old, TensorKind::moment2).as<float>()[i] / (factor * factor));
    }
  }

  LoadedState &from_, &to_;
  const models::QkNormConfig& qk_;
};

}  // namespace

void fold_scale(const std::string& from, const std::string& to, comm::World& world) {
  const FullConfig config = stored_config(world, from);
  LoadedState source(world, config, {1, 1}, false), target(world, folded_config(config, to), {1, 1}, false);
  source.read(from);
  target.take(source);
  Fold fold(source, target);
  for (int64_t layer = 0; layer < config.model.layers; ++layer) fold.layer(layer);
  target.write(to);
  log::info("{}: {}, logit scale fixed at {:.6g}", to, target.run.qk_norm, target.config.model.initial_scale(0));
}

}  // namespace keel
