// QK-Norm against tests/golden/qk_norm.json, written independently in NumPy: every kind, scope and form of gain on rows
// with outliers, on zero rows and on rows below the l2 floor; on one rank and over two.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/framework/ops/qk_norm/qk_norm_case.h"
#include "tests/support/golden.h"

namespace keel::testing {
namespace {

using nlohmann::json;

const json& golden() {
  static const json file = json::parse(std::ifstream(golden_file("qk_norm.json")));
  return file;
}

Values flat(const json& value) {
  if (value.is_null()) return {};
  if (!value.is_array()) return {value.get<double>()};
  Values values;
  for (const json& part : value)
    for (double x : flat(part)) values.push_back(x);
  return values;
}

QkCase case_of(const json& options, const json& q, const json& k, const QkShape& shape) {
  ops::QkNormRopeOptions o;
  const std::string kind = options["kind"];
  o.kind = kind == "rms" ? ops::QkNormKind::rms : kind == "l2" ? ops::QkNormKind::l2 : ops::QkNormKind::layer;
  o.scope = options["scope"] == "head" ? ops::QkNormScope::head : ops::QkNormScope::full;
  o.eps = options["eps"];
  o.zero_centered = options.value("zero_centered", false);
  QkCase c = make_case(shape, DType::f32, o, Weights::none, 1);
  c.q = flat(q);
  c.k = flat(k);
  return c;
}

std::string name_of_variant(const json& options) {
  return fmt::format("{} {} {} {}", options["kind"].get<std::string>(), options["scope"].get<std::string>(),
                     options["weight"].get<std::string>(), options["zero_centered"].get<bool>());
}

QkShape shape_of_file(int64_t rows) {
  return {rows, golden()["heads"], golden()["kv_heads"], golden()["head_dim"]};
}

// Row by row, since rows differ by seven orders of magnitude.
void expect_rows(const Values& actual, const json& expected, int64_t columns, const std::string& what) {
  EXPECT_TRUE(near_by_rows(actual, flat(expected), columns, {kFloat32, 0})) << what;
}

TEST(QkNormGolden, ForwardAndBackward) {
  const json& inputs = golden()["inputs"];
  ASSERT_EQ(golden()["forward_backward"].size(), 24u);
  for (const json& variant : golden()["forward_backward"])
    for (int64_t ranks : {1, 2}) {
      const QkShape shape = shape_of_file(8);
      QkCase c = case_of(variant["options"], inputs["q"]["x"], inputs["k"]["x"], shape);
      c.q_weight = flat(variant["q"]["weight"]);
      c.k_weight = flat(variant["k"]["weight"]);
      c.dq_out = flat(inputs["q"]["dy"]);
      c.dk_out = {flat(inputs["k"]["dy"])};
      const QkResult result = run_case(c, ranks);
      const std::string name = fmt::format("{} over {} ranks: ", name_of_variant(variant["options"]), ranks);
      const int64_t q_row = shape.heads * shape.d, k_row = shape.kv_heads * shape.d;
      expect_rows(result.q, variant["q"]["y"], q_row, name + "q");
      expect_rows(result.k, variant["k"]["y"], k_row, name + "k");
      expect_rows(result.dq, variant["q"]["dx"], q_row, name + "dq");
      expect_rows(result.dk, variant["k"]["dx"], k_row, name + "dk");
      if (c.q_weight.empty()) continue;
      EXPECT_TRUE(near_by_norm(result.dq_weight, flat(variant["q"]["dweight"]), kFloat32)) << name;
      EXPECT_TRUE(near_by_norm(result.dk_weight, flat(variant["k"]["dweight"]), kFloat32)) << name;
    }
}

// The largest |scale * q . k| per head over all pairs of rows.
Values largest_logits(const QkCase& c) {
  const QkResult result = run_case(c);
  const Values scale = flat(golden()["scale"]);
  const int64_t H = c.shape.heads, G = c.shape.kv_heads, d = c.shape.d;
  Values largest(size_t(H), 0.0);
  for (int64_t h = 0; h < H; ++h)
    for (int64_t t = 0; t < c.shape.tokens; ++t)
      for (int64_t j = 0; j < c.shape.tokens; ++j) {
        double logit = 0;
        for (int64_t i = 0; i < d; ++i)
          logit += result.q[size_t((t * H + h) * d + i)] * result.k[size_t((j * G + h / (H / G)) * d + i)];
        largest[size_t(h)] = std::max(largest[size_t(h)], std::abs(scale[size_t(h)] * logit));
      }
  return largest;
}

TEST(QkNormGolden, BoundsHoldAndAreReached) {
  for (const char* part : {"bounds", "tight_bounds"}) {
    const bool tight = part == std::string("tight_bounds");
    for (const json& variant : golden()[part]) {
      const json& q = tight ? golden()["tight_inputs"]["q"] : golden()["inputs"]["q"]["x"];
      const json& k = tight ? golden()["tight_inputs"]["k"] : golden()["inputs"]["k"]["x"];
      QkCase c = case_of(variant["options"], q, k, shape_of_file(int64_t(q.size())));
      c.q_weight = flat(variant["q_weight"]);
      c.k_weight = flat(variant["k_weight"]);
      const Values found = largest_logits(c), expected = flat(variant["largest_logit"]), bound = flat(variant["bound"]);
      for (size_t h = 0; h < bound.size(); ++h) {
        EXPECT_NEAR(found[h], expected[h], 1e-5 * bound[h]) << name_of_variant(variant["options"]) << " head " << h;
        EXPECT_LE(found[h], bound[h] * (1 + 1e-6)) << name_of_variant(variant["options"]) << " head " << h;
        if (tight) {
          EXPECT_GE(found[h], bound[h] * (1 - 2e-5)) << name_of_variant(variant["options"]) << " head " << h;
        }
      }
    }
  }
}

TEST(QkNormGolden, WorkedValues) {
  ASSERT_EQ(golden()["worked"].size(), 4u);
  for (const json& row : golden()["worked"]) {
    const int64_t heads = row["heads"], d = row["head_dim"];
    QkCase c = case_of(row, row["x"], row["x"], {1, heads, heads, d});
    c.q_weight = c.k_weight = flat(row["weight"]);
    EXPECT_TRUE(near_by_norm(run_case(c).q, flat(row["expected"]), kFloat32)) << row["name"];
  }
}

}  // namespace
}  // namespace keel::testing
