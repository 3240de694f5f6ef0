// Bounds from gains and scales: worked values, and for each kind, scope and weight those of tests/golden, which logits
// of adversarial rows stay below and those of tight rows reach.
#include "models/decoder/bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "framework/ops/qk_norm/head_gains.h"
#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/tensor/buffer.h"
#include "models/decoder/block_specs.h"
#include "tests/support/golden.h"

namespace keel::models {
namespace {

using nlohmann::json;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointwise;

DecoderConfig small(ops::QkNormKind kind, ops::QkNormScope scope) {
  DecoderConfig c;
  c.hidden = 24, c.layers = 2;
  c.attention.heads = 4;
  c.attention.kv_heads = 2;
  c.attention.qk_norm.kind = kind;
  c.attention.qk_norm.scope = scope;
  return c;
}

std::vector<float> flat(const json& values) {
  std::vector<float> all;
  if (values.is_null()) return all;
  for (const json& value : values) {
    if (!value.is_array()) all.push_back(value);
    for (float inner : flat(value.is_array() ? value : json(nullptr))) all.push_back(inner);
  }
  return all;
}

// What a step takes from its weights on the device (ops/qk_norm/head_gains.h).
std::vector<float> bounds_of_step(const DecoderConfig& c, const StoredGains& stored) {
  const int64_t H = c.attention.heads, G = c.kv_heads();
  const OwnedTensor q({H}, DType::f32), k({G}, DType::f32), scale({H}, DType::f32), bound({H}, DType::f32);
  auto tensor = [](const std::vector<float>& values) {
    return values.empty() ? ConstTensor()
                          : Tensor(const_cast<float*>(values.data()), {int64_t(values.size())}, DType::f32);
  };
  ops::head_gains({q, k, scale, bound}, {.q = tensor(stored.q),
                                         .k = tensor(stored.k),
                                         .scale = tensor(stored.scale),
                                         .head_dim = c.head_dim(),
                                         .shift = c.attention.qk_norm.zero_centered ? 1.f : 0.f,
                                         .initial_scale = float(c.initial_scale(0)),
                                         .factor = float(bound_factor(c, 0))});
  return {bound.tensor.as<float>(), bound.tensor.as<float>() + H};
}

TEST(Bounds, EqualTheIndependentOnes) {
  const json golden = json::parse(std::ifstream(testing::golden_file("qk_norm.json")));
  int cases = 0;
  for (const char* list : {"bounds", "tight_bounds"})
    for (const json& entry : golden[list]) {
      const json& o = entry["options"];
      const std::string kind = o["kind"];
      DecoderConfig c = small(kind == "rms"  ? ops::QkNormKind::rms
                              : kind == "l2" ? ops::QkNormKind::l2
                                             : ops::QkNormKind::layer,
                              o["scope"] == "head" ? ops::QkNormScope::head : ops::QkNormScope::full);
      c.attention.qk_norm.zero_centered = o["zero_centered"];
      c.attention.logit_scale.init = -1.0;  // g = g0 w, and the sign of neither counts
      const StoredGains stored{flat(entry["q_weight"]), flat(entry["k_weight"]), flat(golden["scale"])};
      const std::vector<double> bounds = logit_bounds(c, 0, stored);
      EXPECT_THAT(bounds, Pointwise(DoubleNear(1e-5), entry["bound"].get<std::vector<double>>())) << o;
      const std::vector<float> of_step = bounds_of_step(c, stored);
      for (size_t h = 0; h < bounds.size(); ++h) EXPECT_NEAR(of_step[h], bounds[h], 1e-6 * bounds[h]) << o;
      for (size_t h = 0; h < bounds.size(); ++h)
        EXPECT_LE(entry["largest_logit"][h].get<double>(), bounds[h] * (1 + 1e-5)) << o;
      if (list == std::string("tight_bounds")) {
        for (size_t h = 0; h < bounds.size(); ++h)
          EXPECT_GE(entry["largest_logit"][h].get<double>(), bounds[h] * (1 - 2e-5)) << o;
      }
      ++cases;
    }
  EXPECT_EQ(cases, 48);
}

// d = 6, g0 at its start: 1/sqrt(d) times d; sqrt(H G) more for full; l2 is sqrt(d), and sqrt(d H G) for full.
TEST(Bounds, WorkedValuesAtTheStart) {
  const double root = std::sqrt(6.0);
  for (auto [kind, scope, expected] : {std::tuple(ops::QkNormKind::rms, ops::QkNormScope::head, root),
                                       {ops::QkNormKind::layer, ops::QkNormScope::head, root},
                                       {ops::QkNormKind::l2, ops::QkNormScope::head, root},
                                       {ops::QkNormKind::rms, ops::QkNormScope::full, root * std::sqrt(8.0)},
                                       {ops::QkNormKind::layer, ops::QkNormScope::full, root * std::sqrt(8.0)},
                                       {ops::QkNormKind::l2, ops::QkNormScope::full, root * std::sqrt(8.0)}}) {
    const auto near = DoubleNear(expected, 1e-12);
    EXPECT_THAT(logit_bounds(small(kind, scope), 0, {}), ElementsAre(near, near, near, near));
  }
}

// One scale for all heads; heads 0 and 1 share the first KV head.
TEST(Bounds, SharedScaleAndKvHeads) {
  DecoderConfig c = small(ops::QkNormKind::l2, ops::QkNormScope::head);
  c.attention.logit_scale.init = 10.0;
  std::vector<float> k(12, 1);
  k[3] = -3;
  EXPECT_THAT(logit_bounds(c, 1, {{}, k, {0.5}}), ElementsAre(15, 15, 5, 5));
}

// The largest logit of head 0 over rows with k = q; `fill`: which features are not 0, all, turning or still.
double largest_logit(const DecoderConfig& c, const std::string& fill) {
  const int64_t n = 16, H = 4, G = 2, d = c.head_dim(), rotated = c.rotated_features(), width = (H + 2 * G) * d;
  OwnedTensor qkv({n, width}, DType::f32), q({n, H, d}, DType::f32), k({n, G, d}, DType::f32),
      rope({n, rotated}, DType::f32), positions({n}, DType::i32);
  ops::rope_table(rope, c.rope.theta, rope_scaling(c, LayerKind::global));
  for (int64_t row = 0; row < n; ++row) {
    positions.tensor.as<int32_t>()[row] = int32_t(row);
    for (int64_t i = 0; i < width; ++i) {
      const bool counts = fill == "all" || (fill == "turning") == (i % d < rotated);
      qkv.tensor.as<float>()[row * width + i] = counts ? float(1 + row) : 0;
    }
  }
  ops::qk_norm_rope_forward(q, k, {qkv, {}, {}, rope, positions}, {},
                            {.heads = H,
                             .kv_heads = G,
                             .head_dim = d,
                             .rotated = rotated,
                             .kind = c.attention.qk_norm.kind,
                             .eps = 1e-12f,
                             .after_rope = c.attention.qk_norm.placement == QkPlacement::after_rope});
  double largest = 0;
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < n; ++j) {
      const float *a = q.tensor.as<float>() + t * H * d, *b = k.tensor.as<float>() + j * G * d;
      largest = std::max(largest, std::abs(c.initial_scale(0) * std::inner_product(a, a + d, b, 0.0)));
    }
  return largest;
}

// An amplitude m of the rotation multiplies logits by m^2 (QKNORM.md section 3), and the bound is reached with it.
TEST(Bounds, KnowTheRotationsAmplitude) {
  for (ops::QkNormKind kind : {ops::QkNormKind::rms, ops::QkNormKind::l2}) {
    DecoderConfig c = small(kind, ops::QkNormScope::head);
    c.attention.head_dim = int64_t(8);
    const double plain = logit_bounds(c, 0, {})[0];
    c.rope.scaling.kind = ops::RopeScaling::Kind::yarn;
    c.rope.scaling.factor = 16;
    const double m = 0.1 * std::log(16.0) + 1;
    EXPECT_NEAR(logit_bounds(c, 0, {})[0], m * m * plain, 1e-12 * plain);
    EXPECT_NEAR(largest_logit(c, "all"), m * m * plain, 1e-5 * plain);

    c.rope.fraction = 0.5;
    EXPECT_NEAR(largest_logit(c, "turning"), logit_bounds(c, 0, {})[0], 1e-5 * plain);
    c.rope.scaling.attention_factor = 0.5;  // what does not turn keeps its size
    EXPECT_NEAR(logit_bounds(c, 0, {})[0], plain, 1e-12 * plain);
    EXPECT_NEAR(largest_logit(c, "still"), plain, 1e-5 * plain);
    c.rope.fraction = 1;
    EXPECT_NEAR(logit_bounds(c, 0, {})[0], plain / 4, 1e-12 * plain);

    c.attention.qk_norm.placement = QkPlacement::after_rope;  // the norm takes it away again
    EXPECT_NEAR(logit_bounds(c, 0, {})[0], plain, 1e-12 * plain);
    EXPECT_NEAR(largest_logit(c, "all"), plain, 1e-5 * plain);
    c.attention.qk_norm.placement = QkPlacement::before_rope;
    c.layer_pattern = {LayerKind::local};
    EXPECT_NEAR(logit_bounds(c, 0, {})[0], plain, 1e-12 * plain) << "local layers are never scaled";
  }
}

TEST(Bounds, NoneWithoutQkNorm) {
  DecoderConfig c = small(ops::QkNormKind::none, ops::QkNormScope::head);
  EXPECT_THAT(logit_bounds(c, 0, {}), IsEmpty());
  c = small(ops::QkNormKind::rms, ops::QkNormScope::head);
  c.attention.qk_norm.layers = QkLayers::rope_only;
  c.layer_pattern = {LayerKind::global, LayerKind::local};
  c.positions.local = PositionKind::none;
  EXPECT_EQ(logit_bounds(c, 0, {}).size(), 4u);
  EXPECT_THAT(logit_bounds(c, 1, {}), IsEmpty());
}

}  // namespace
}  // namespace keel::models
