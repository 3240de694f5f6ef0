// What holds for QK-Norm by construction: worked values, bounds on the logits, invariances, edge rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/framework/ops/qk_norm/qk_norm_case.h"

namespace keel {
namespace {

using namespace testing;
using ops::QkNormKind;
using ops::QkNormRopeOptions;
using ops::QkNormScope;
using ::testing::DoubleNear;
using ::testing::Pointwise;

QkNormRopeOptions options_of(QkNormKind kind, QkNormScope scope = QkNormScope::head, float eps = 0) {
  QkNormRopeOptions options;
  options.kind = kind;
  options.scope = scope;
  options.eps = eps;
  return options;
}

// One token, q and k alike.
QkCase plain_case(const Values& row, int64_t d, const QkNormRopeOptions& options, DType dtype = DType::f32) {
  int64_t heads = int64_t(row.size()) / d;
  QkCase c = make_case({1, heads, heads, d}, dtype, options, Weights::none, 1);
  c.q = c.k = row;
  return c;
}

TEST(QkNormWorked, HeadAndFullScopeAtTensorSizeOneAndTwo) {  // CASES R03
  for (int64_t ranks : {1, 2}) {
    QkCase head = plain_case({3, 4, 0.3, 0.4}, 2, options_of(QkNormKind::rms));
    QkCase full = plain_case({3, 4, 0.3, 0.4}, 2, options_of(QkNormKind::rms, QkNormScope::full));
    QkResult by_head = run_case(head, ranks), by_width = run_case(full, ranks);
    for (const Values* side : {&by_head.q, &by_head.k})
      EXPECT_THAT(*side, Pointwise(DoubleNear(1e-5), {0.84853, 1.13137, 0.84853, 1.13137})) << ranks;
    for (const Values* side : {&by_width.q, &by_width.k})
      EXPECT_THAT(*side, Pointwise(DoubleNear(1e-5), {1.19404, 1.59206, 0.11940, 0.15921})) << ranks;
  }
}

// One KV head of two features, held by both ranks: each adds half of its sum, or of its centred moment.
TEST(QkNormWorked, ReplicatedKvHeadCountsOnce) {  // CASES R11
  for (QkNormKind kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer}) {
    QkCase c = make_case({1, 2, 1, 2}, DType::f32, options_of(kind, QkNormScope::full), Weights::none, 1);
    c.q = {3, 4, 0.3, 0.4};
    c.k = {3, 4};
    c.dk_out.push_back(c.dk_out[0]);
    Values want = {0.84853, 1.13137};
    if (kind == QkNormKind::l2) want = {0.6, 0.8};
    if (kind == QkNormKind::layer) want = {-1, 1};
    EXPECT_THAT(run_case(c, 2).k, Pointwise(DoubleNear(1e-5), want));
  }
}

TEST(QkNormWorked, PerHeadWeights) {  // CASES R04
  QkCase c = plain_case({3, 4, 0.3, 0.4}, 2, options_of(QkNormKind::rms));
  c.q_weight = c.k_weight = {1, 1, 2, 2};
  for (int64_t ranks : {1, 2})
    EXPECT_THAT(run_case(c, ranks).q, Pointwise(DoubleNear(1e-5), {0.84853, 1.13137, 1.69706, 2.26274}));
}

TEST(QkNormWorked, OrderOfNormAndRotation) {  // CASES R05
  for (bool equal_gains : {false, true})
    for (bool after : {false, true}) {
      QkNormRopeOptions options = options_of(QkNormKind::rms);
      options.rotated = 2;
      options.after_rope = after;
      QkCase c = plain_case({1, 0}, 2, options);
      c.q_weight = equal_gains ? Values{1, 1} : Values{2, 1};
      c.rope[size_t(2 * c.positions[0])] = 0;  // 90 degrees
      c.rope[size_t(2 * c.positions[0] + 1)] = 1;
      Values want = {0, after || equal_gains ? 1.41421 : 2.82843};
      EXPECT_THAT(run_case(c).q, Pointwise(DoubleNear(1e-5), want)) << equal_gains << after;
    }
}

TEST(QkNormWorked, EpsilonIsInsideTheRoot) {  // CASES R06
  for (DType dtype : {DType::f32, DType::bf16}) {
    QkCase c = plain_case(Values(8, 0x1p-10), 8, options_of(QkNormKind::rms, QkNormScope::head, 0x1p-20f), dtype);
    EXPECT_THAT(run_case(c).q, Pointwise(DoubleNear(dtype == DType::f32 ? 1e-5 : 2e-3), Values(8, 0.70711)));
  }
}

TEST(QkNormWorked, ZeroCenteredGainsAddInFp32) {  // CASES R09
  QkNormRopeOptions options = options_of(QkNormKind::rms);
  options.zero_centered = true;
  QkCase c = plain_case(Values(4, 7.0), 4, options);
  c.q_weight = Values(4, double(float(bf16(0.003f))));
  c.k_weight = Values(4, 0.0);
  EXPECT_THAT(run_case(c).q, Pointwise(DoubleNear(1e-5), Values(4, 1.003)));
  EXPECT_THAT(run_case(c).k, Pointwise(DoubleNear(1e-7), Values(4, 1.0)));
}

// Rounding before the weight: 1/3 of the way between bf16 numbers times 3 shows where the rounding happened.
TEST(QkNormWorked, CastBeforeWeight) {
  QkNormRopeOptions options = options_of(QkNormKind::rms);
  for (bool cast : {false, true}) {
    options.cast_before_weight = cast;
    QkCase c = plain_case({1, 2}, 2, options, DType::bf16);
    c.q_weight = {3, 3};
    double xhat = 1 / std::sqrt(2.5), rounded = double(float(bf16(float(xhat))));
    EXPECT_EQ(run_case(c).q[0], double(float(bf16(float(3 * (cast ? rounded : xhat)))))) << cast;
  }
}

// Heads that contribute 0.1, 0.2, 0.2 and 0.3 to a shared gain's gradient: 0.8 in all, on one rank or summed over two.
TEST(QkNormWorked, SharedGainGradientSumsOverHeads) {  // CASES R01
  QkCase c = plain_case(Values(8, 1.0), 2, options_of(QkNormKind::rms));
  c.q_weight = {1, 1};
  c.dq_out = {0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.3};
  for (int64_t ranks : {1, 2, 4})
    EXPECT_THAT(run_case(c, ranks).dq_weight, Pointwise(DoubleNear(1e-6), {0.8, 0.8})) << ranks;
}

TEST(QkNormWorked, LogitOfAHeadWithItself) {
  QkCase c = make_case({1, 1, 1, 128}, DType::f32, options_of(QkNormKind::rms), Weights::none, 3);
  c.k = c.q;
  QkResult result = run_case(c);
  EXPECT_NEAR(dot(result.q, result.k) * 0.088388, 11.3137, 1e-3);  // sqrt(128)
}

// --- bounds -------------------------------------------------------------------------------------------------------

double largest_gain(const QkCase& c, const Values& weight, int64_t head) {
  double largest = weight.empty() ? 1 : 0;
  int64_t d = c.shape.d;
  for (int64_t i = 0; i < d && !weight.empty(); ++i) {
    double w = weight[size_t(int64_t(weight.size()) == d ? i : head * d + i)];
    largest = std::max(largest, std::abs(w + (c.options.zero_centered ? 1 : 0)));
  }
  return largest;
}

// QKNORM.md section 3 with g = 1, m the factor inside cos and sin.
double bound(const QkCase& c, int64_t head, int64_t kv_head, double m) {
  const QkShape& s = c.shape;
  double b = largest_gain(c, c.q_weight, head) * largest_gain(c, c.k_weight, kv_head) * m * m;
  if (c.options.kind != QkNormKind::l2) {
    b *= double(s.d);
    if (c.options.scope == QkNormScope::full) b *= std::sqrt(double(s.heads * s.kv_heads));
  }
  int roundings = c.dtype == DType::bf16 ? (c.options.cast_before_weight ? 4 : 2) : 0;
  return b * std::pow(1 + 0x1p-8, roundings) * (1 + 1e-5);
}

// The largest |s| / bound over all pairs of tokens and heads, and the token whose own q and k reach the most.
struct Reach {
  double ratio = 0;
  int64_t token = 0;
};
Reach reach_of(const QkCase& c, double m = 1) {
  QkResult result = run_case(c);
  const QkShape& s = c.shape;
  Reach reach;
  double best_own = -1;
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t u = 0; u < s.tokens; ++u)
      for (int64_t h = 0; h < s.heads; ++h) {
        int64_t g = h / (s.heads / s.kv_heads);
        double logit = 0;
        for (int64_t i = 0; i < s.d; ++i)
          logit += result.q[size_t((t * s.heads + h) * s.d + i)] * result.k[size_t((u * s.kv_heads + g) * s.d + i)];
        double ratio = std::abs(logit) / bound(c, h, g, m);
        reach.ratio = std::max(reach.ratio, ratio);
        if (t == u && ratio > best_own) {
          best_own = ratio;
          reach.token = t;
        }
      }
  return reach;
}

// Rows up to 1e4 with outlier coordinates.
double adversarial(uint64_t seed, uint64_t i) {
  double size = std::pow(10, 8 * uniform(seed, 3 * i) - 4), outlier = uniform(seed, 3 * i + 1) < 0.05 ? 1e4 : size;
  return (uniform(seed, 3 * i + 2) < 0.5 ? -1 : 1) * std::min(1e4, outlier);
}

// Each round keeps the token that came nearest to its bound and tries variations of it.
void search(QkCase& c, Values& x, int64_t width, int64_t best, uint64_t seed) {
  Values row(x.begin() + best * width, x.begin() + (best + 1) * width);
  for (int64_t t = 0; t < c.shape.tokens; ++t)
    for (int64_t i = 0; i < width; ++i) {
      uint64_t at = uint64_t(t * width + i);
      double& value = x[size_t(at)];
      value = row[size_t(i)];
      double kind = uniform(seed, 2 * at);
      if (t > 0 && kind < 0.1) value *= 2 * uniform(seed, 2 * at + 1);
      if (t > 0 && kind > 0.97) value = adversarial(seed, at);
    }
  x = rounded_to(c.dtype, x);
}

TEST(QkNormBounds, NoInputBreaksThem) {
  uint64_t seed = 0;
  double reached = 0;
  for (DType dtype : {DType::f32, DType::bf16})
    for (QkNormKind kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
      for (QkNormScope scope : {QkNormScope::head, QkNormScope::full})
        for (int flags = 0; flags < 8; ++flags) {
          QkNormRopeOptions options = options_of(kind, scope, kind == QkNormKind::l2 ? 1e-12f : 1e-6f);
          options.rotated = 8;
          options.after_rope = flags & 1;
          options.zero_centered = flags & 2;
          options.cast_before_weight = flags & 4;
          QkCase c = make_case({12, 2, 1, 8}, dtype, options, Weights::per_head, seed += 100);
          for (size_t i = 0; i < c.q.size(); ++i) c.q[i] = adversarial(seed + 20, i);
          for (size_t i = 0; i < c.k.size(); ++i) c.k[i] = adversarial(seed + 21, i);
          c.q = rounded_to(dtype, c.q);
          c.k = rounded_to(dtype, c.k);
          double ratio = 0;
          for (uint64_t round = 0; round < 15; ++round) {
            Reach reach = reach_of(c);
            ratio = std::max(ratio, reach.ratio);
            search(c, c.q, 16, reach.token, seed * 1000 + 2 * round);
            search(c, c.k, 8, reach.token, seed * 1000 + 2 * round + 1);
          }
          EXPECT_LE(ratio, 1) << "kind " << int(kind) << " scope " << int(scope) << " flags " << flags;
          reached = std::max(reached, ratio);
        }
  EXPECT_GT(reached, 0.8) << "the search is too weak to prove anything";
}

// Equal gains, k = q at one position, all energy in one head, mean 0: the bound is reached.
TEST(QkNormBounds, AreTight) {
  uint64_t seed = 0;
  for (QkNormKind kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
    for (QkNormScope scope : {QkNormScope::head, QkNormScope::full})
      for (double m : {1.0, 1.25}) {
        QkNormRopeOptions options = options_of(kind, scope, 1e-12f);
        options.rotated = 32;
        QkCase c = make_case({1, 4, 2, 32}, DType::f32, options, Weights::per_head, seed += 100);
        for (double& value : c.rope) value *= m;
        c.q_weight.assign(c.q_weight.size(), 1.5);
        c.k_weight.assign(c.k_weight.size(), -0.75);
        Values head = random_values(32, seed, 1e3);
        double mean = 0;
        for (double value : head) mean += value / 32;
        c.q.assign(c.q.size(), 0);
        c.k.assign(c.k.size(), 0);
        for (size_t i = 0; i < 32; ++i) c.q[i] = c.k[i] = head[i] - mean;
        double ratio = reach_of(c, m).ratio * (1 + 1e-5);
        EXPECT_NEAR(ratio, 1, 1e-5) << "kind " << int(kind) << " scope " << int(scope);
      }
}

// --- invariances --------------------------------------------------------------------------------------------------

TEST(QkNormProperties, ScaleOfTheInputDoesNotMatter) {
  for (QkNormKind kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
    for (QkNormScope scope : {QkNormScope::head, QkNormScope::full}) {
      QkNormRopeOptions options = options_of(kind, scope);
      options.rotated = 6;
      QkCase c = make_case({4, 2, 2, 10}, DType::f32, options, Weights::per_head, 5);
      QkResult before = run_case(c);
      for (double factor : {1024.0, 0x1p-9, 3.7}) {
        QkCase other = c;
        other.q = rounded_to(DType::f32, scaled(c.q, factor));
        QkResult after = run_case(other);
        EXPECT_TRUE(near_by_norm(after.q, before.q, factor == 3.7 ? 1e-6 : 0));
        EXPECT_TRUE(near_by_norm(scaled(after.dq, factor), before.dq, factor == 3.7 ? 1e-5 : 0));
        EXPECT_TRUE(near_by_norm(after.dq_weight, before.dq_weight, factor == 3.7 ? 1e-5 : 0));
        EXPECT_EQ(after.k, before.k);
      }
    }
}

TEST(QkNormProperties, OnlyEpsilonLetsTheGradientAlongTheInputThrough) {
  for (Weights weights : {Weights::none, Weights::shared, Weights::per_head})
    for (QkNormScope scope : {QkNormScope::head, QkNormScope::full})
      for (float eps : {0.f, 0.5f}) {
        if (scope == QkNormScope::full && weights == Weights::shared) continue;
        QkCase c = make_case({1, 2, 1, 10}, DType::f32, options_of(QkNormKind::rms, scope, eps), weights, 6);
        c.q = rounded_to(DType::f32, random_values(20, 66));
        QkResult result = run_case(c);
        reference::QkSide side = reference_side(c, false);
        int64_t n = side.group();
        for (int64_t start = 0; start < 20; start += n) {
          double along = 0, s = 0, squares = 0;
          for (int64_t i = start; i < start + n; ++i) {
            along += result.dq[size_t(i)] * c.q[size_t(i)];
            s += side.gain(i) * c.dq_out[size_t(i)] * c.q[size_t(i)];
            squares += c.q[size_t(i)] * c.q[size_t(i)] / double(n);
          }
          double r = 1 / std::sqrt(squares + double(eps));
          EXPECT_NEAR(along, r * s * double(eps) / (squares + double(eps)), 1e-5 * std::max(1.0, std::abs(r * s)));
        }
      }
}

TEST(QkNormProperties, ZeroRows) {  // CASES R06
  for (DType dtype : {DType::f32, DType::bf16})
    for (QkNormKind kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
      for (QkNormScope scope : {QkNormScope::head, QkNormScope::full})
        for (float eps : {0.f, 1e-6f}) {
          QkCase c = make_case({2, 2, 1, 6}, dtype, options_of(kind, scope, eps), Weights::per_head, 7);
          c.q.assign(c.q.size(), 0);
          QkResult result = run_case(c);
          EXPECT_EQ(result.q, Values(24, 0.0));
          for (double d : result.dq) EXPECT_TRUE(std::isfinite(d));
          for (double d : result.dq_weight) EXPECT_EQ(d, 0);
          EXPECT_EQ(result.dq == Values(24, 0.0), kind == QkNormKind::l2 || eps == 0);
        }
}

TEST(QkNormProperties, L2BelowItsFloorDividesByItAndHasNoGradient) {
  for (QkNormScope scope : {QkNormScope::head, QkNormScope::full}) {
    QkCase c = make_case({1, 1, 1, 4}, DType::f32, options_of(QkNormKind::l2, scope, 1e-12f), Weights::none, 8);
    c.q = {3e-13, -1e-13, 0, 2e-13};
    c.k = {3e-12, -1e-12, 0, 2e-12};
    QkResult result = run_case(c);
    EXPECT_THAT(result.q, Pointwise(DoubleNear(1e-6), Values{0.3, -0.1, 0, 0.2}));
    EXPECT_EQ(result.dq, Values(4, 0.0));
    EXPECT_NEAR(norm_of(result.k), 1, 1e-6);
    EXPECT_GT(norm_of(result.dk), 1e10);  // above the floor: the true derivative
  }
}

// The logit of q at position 5 and k at 3 is that of 105 and 103.
TEST(QkNormProperties, LogitsDependOnDistancesOnly) {
  for (int64_t rotated : {8, 16}) {
    QkNormRopeOptions options = options_of(QkNormKind::rms, QkNormScope::head, 1e-6f);
    options.rotated = rotated;
    QkCase c = make_case({2, 1, 1, 16}, DType::f32, options, Weights::per_head, 9);
    DeviceTensor table({128, rotated}, DType::f32);
    ops::rope_table(table, 1e4);
    auto logit = [&](int32_t q_position, int32_t k_position) {
      Values all = to_doubles(table);
      for (int32_t i = 0; i < 2; ++i) {
        c.positions[size_t(i)] = i;
        int32_t position = i == 0 ? q_position : k_position;
        std::copy_n(all.begin() + position * rotated, rotated, c.rope.begin() + i * rotated);
      }
      QkResult result = run_case(c);
      double sum = 0;
      for (size_t i = 0; i < 16; ++i) sum += result.q[i] * result.k[16 + i];
      return sum;
    };
    EXPECT_NEAR(logit(5, 3), logit(105, 103), 1e-5);
    EXPECT_GT(std::abs(logit(5, 3) - logit(3, 5)), 1e-2);
  }
}

}  // namespace
}  // namespace keel
