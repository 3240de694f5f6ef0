// Bounds from gains and scales: worked values, and for each kind, scope and weight those of tests/golden, which logits
// of adversarial rows stay below and those of tight rows reach.
#include "models/decoder/bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

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

TEST(Bounds, EqualTheIndependentOnes) {
  const json golden = json::parse(std::ifstream(KEEL_GOLDEN "/qk_norm.json"));
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
