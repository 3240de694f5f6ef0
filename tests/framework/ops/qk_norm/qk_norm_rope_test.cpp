#include "framework/ops/qk_norm/qk_norm_rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/ops/qk_norm/qk_norm_case.h"

namespace keel {
namespace {

using namespace testing;
using ops::QkNormKind;
using ops::QkNormRopeOptions;
using ops::QkNormScope;

std::string describe(const QkCase& c, int64_t ranks) {
  const auto& o = c.options;
  return fmt::format(
      "{} kind {} scope {} weights {} zero_centered {} after {} cast {} rotated {} n {} H {} G {} d {} at {}",
      name_of(c.dtype), int(o.kind), int(o.scope), c.q_weight.size(), o.zero_centered, o.after_rope,
      o.cast_before_weight, o.rotated, c.shape.tokens, c.shape.heads, c.shape.kv_heads, c.shape.d, ranks);
}

void expect_like_reference(const QkCase& c, int64_t ranks = 1) {
  SCOPED_TRACE(describe(c, ranks));
  QkResult got = run_case(c, ranks), want = reference_result(c);
  double tolerance = one_op_tolerance(c.dtype);
  EXPECT_TRUE(near_by_norm(got.q, want.q, tolerance));
  EXPECT_TRUE(near_by_norm(got.k, want.k, tolerance));
  EXPECT_TRUE(near_by_norm(got.dq, want.dq, tolerance));
  EXPECT_TRUE(near_by_norm(got.dk, want.dk, tolerance));
  EXPECT_TRUE(near_by_norm(got.dq_weight, want.dq_weight, tolerance));
  EXPECT_TRUE(near_by_norm(got.dk_weight, want.dk_weight, tolerance));
  for (auto [a, b] : {std::pair{&got.q, &want.q}, {&got.k, &want.k}, {&got.dq, &want.dq}, {&got.dk, &want.dk}})
    EXPECT_TRUE(near_by_rows(*a, *b, c.shape.d));
}

// Every combination of the schema on one small shape, with these rotations.
void expect_every_variant(const QkShape& shape, const std::vector<int64_t>& rotations) {
  uint64_t seed = 0;
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto kind : {QkNormKind::none, QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
      for (auto scope : {QkNormScope::head, QkNormScope::full})
        for (auto weights : {Weights::none, Weights::shared, Weights::per_head})
          for (int64_t rotated : rotations)
            for (int flags = 0; flags < 8; ++flags) {
              if (kind == QkNormKind::none && (weights != Weights::none || flags > 0)) continue;
              if (scope == QkNormScope::full && weights == Weights::shared) continue;
              QkNormRopeOptions options;
              options.kind = kind;
              options.scope = scope;
              options.rotated = rotated;
              options.zero_centered = flags & 1;
              options.after_rope = flags & 2;
              options.cast_before_weight = flags & 4;
              expect_like_reference(make_case(shape, dtype, options, weights, seed += 100));
            }
}

TEST(QkNormRope, EveryVariantEqualsTheReference) {
  expect_every_variant({5, 4, 2, 12}, {0, 6, 12});
}

// Heads of models: every piece of a row is a multiple of 16 bytes, so that GPUs take eight elements at a time.
TEST(QkNormRope, EveryVariantOfWideHeads64) {
  expect_every_variant({5, 2, 1, 64}, {32, 64});
}
TEST(QkNormRope, EveryVariantOfWideHeads128) {
  expect_every_variant({5, 2, 1, 128}, {64, 128});
}

QkCase random_case(DType dtype, uint64_t seed) {
  auto pick = [&](uint64_t index, int64_t low, int64_t high) { return random_integer(seed, index, low, high); };
  QkNormRopeOptions options;
  int64_t kv_heads = pick(1, 1, 4), heads = kv_heads * pick(2, 1, 4);
  int64_t d = pick(3, 0, 2) ? pick(4, 2, 40) : 16 * pick(4, 1, 17);
  options.kind = QkNormKind(pick(5, 0, 4));
  options.scope = QkNormScope(pick(6, 0, 2));
  options.rotated = 2 * pick(7, 0, d / 2 + 1);
  options.eps = options.kind == QkNormKind::l2 ? 1e-12f : 1e-6f;
  options.zero_centered = pick(8, 0, 2);
  options.after_rope = pick(9, 0, 2);
  options.cast_before_weight = pick(10, 0, 2);
  auto weights = Weights(pick(11, 0, 3));
  if (options.kind == QkNormKind::none) weights = Weights::none;
  if (options.scope == QkNormScope::full && weights == Weights::shared) weights = Weights::per_head;
  return make_case({pick(12, 1, 300), heads, kv_heads, d}, dtype, options, weights, seed * 1000);
}

TEST(QkNormRope, RandomShapesEqualTheReference) {
  for (uint64_t seed = 1; seed <= 30; ++seed)
    for (DType dtype : {DType::f32, DType::bf16}) expect_like_reference(random_case(dtype, seed));
}

// So many that a block of a GPU takes several heads, and the last ones of a side are fewer.
TEST(QkNormRope, GroupsOfHeadsEqualTheReference) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto weights : {Weights::shared, Weights::per_head}) {
      QkNormRopeOptions options;
      options.rotated = 16;
      expect_like_reference(make_case({700, 20, 5, 16}, dtype, options, weights, 77));
    }
}

// Full width over 2 and 4 ranks, among them one KV head on two or four ranks.
TEST(QkNormRope, RanksThatCombineTheirSumsEqualOneRank) {
  uint64_t seed = 5000;
  for (DType dtype : {DType::f32, DType::bf16})
    for (auto kind : {QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
      for (int64_t kv_heads : {1, 2, 4})
        for (int64_t ranks : {1, 2, 4}) {
          QkNormRopeOptions options;
          options.kind = kind;
          options.scope = QkNormScope::full;
          options.rotated = 6;
          QkCase c = make_case({4, 4, kv_heads, 10}, dtype, options, Weights::per_head, seed += 100);
          int64_t replicas = std::max<int64_t>(1, ranks / kv_heads);
          for (int64_t r = 1; r < replicas; ++r)
            c.dk_out.push_back(rounded_to(dtype, random_values(int64_t(c.k.size()), seed + 10 + uint64_t(r))));
          expect_like_reference(c, ranks);
        }
}

// A per-head norm needs no exchange: heads split in two, shared gains' gradients summed.
TEST(QkNormRope, HeadScopeSplitsByHeads) {
  for (auto weights : {Weights::shared, Weights::per_head}) {
    QkNormRopeOptions options;
    options.rotated = 8;
    expect_like_reference(make_case({6, 4, 2, 8}, DType::f32, options, weights, 9), 2);
  }
}

TEST(QkNormRope, TolerancesRefusePlantedMistakes) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    QkNormRopeOptions options;
    options.rotated = 16;
    QkCase c = make_case({16, 4, 2, 16}, dtype, options, Weights::per_head, 31);
    QkResult want = reference_result(c);
    double tolerance = one_op_tolerance(dtype);
    auto expect_refused = [&](auto&& change) {
      QkCase wrong = c;
      change(wrong);
      EXPECT_TRUE(fails(near_by_norm(run_case(wrong).dq, want.dq, tolerance)));
    };
    expect_refused([](QkCase& w) { w.options.after_rope = true; });
    expect_refused([](QkCase& w) { w.options.zero_centered = true; });
    expect_refused([](QkCase& w) { w.options.kind = QkNormKind::l2; });
    expect_refused([](QkCase& w) { w.options.kind = QkNormKind::layer; });
    expect_refused([](QkCase& w) {
      w.options.rotated = 0;
      w.rope.clear();
    });
    expect_refused([](QkCase& w) { w.positions[3] ^= 1; });
    EXPECT_TRUE(fails(near_by_norm(shifted(run_case(c).dk_weight), want.dk_weight, tolerance)));
    EXPECT_TRUE(fails(near_by_rows(with_row_scaled(run_case(c).dk, 16, 5, 0.9), want.dk, 16)));
  }
}

TEST(QkNormRope, WeightGradientsAddToWhatIsThere) {
  QkNormRopeOptions options;
  QkCase c = make_case({7, 2, 1, 8}, DType::f32, options, Weights::shared, 40);
  QkRank rank(c, 0, 1);
  set_values(rank.d_q_weight, Values(8, 3.0));
  ops::qk_norm_rope_backward(rank.gradients(), {rank.dq_out, rank.dk_out, rank.inputs(), {}, rank.options()}, {});
  Values expected = reference_result(c).dq_weight;
  for (double& value : expected) value += 3;
  EXPECT_TRUE(near_by_norm(rank.d_q_weight, expected, kFloat32));
}

TEST(QkNormRope, LeavesTheColumnsOfVAlone) {
  QkNormRopeOptions options;
  QkCase c = make_case({3, 2, 1, 5}, DType::bf16, options, Weights::none, 41);
  QkRank rank(c, 0, 1);
  Values before = to_doubles(rank.d_qkv.tensor.slice(1, 15, 20));
  ops::qk_norm_rope_backward(rank.gradients(), {rank.dq_out, rank.dk_out, rank.inputs(), {}, rank.options()}, {});
  EXPECT_EQ(to_doubles(rank.d_qkv.tensor.slice(1, 15, 20)), before);
}

TEST(QkNormRope, SameBitsInEveryRun) {
  QkNormRopeOptions options;
  options.rotated = 64;
  QkCase c = make_case({500, 4, 2, 64}, DType::bf16, options, Weights::shared, 42);
  QkResult first = run_case(c);
  for (int i = 0; i < 5; ++i) {
    QkResult again = run_case(c);
    EXPECT_EQ(again.dq_weight, first.dq_weight);
    EXPECT_EQ(again.dk_weight, first.dk_weight);
    EXPECT_EQ(again.dq, first.dq);
  }
}

TEST(QkNormRope, NoneWithoutRotationCopies) {
  QkNormRopeOptions options;
  options.kind = QkNormKind::none;
  for (DType dtype : {DType::f32, DType::bf16}) {
    QkCase c = make_case({3, 2, 2, 7}, dtype, options, Weights::none, 43);
    QkResult result = run_case(c);
    EXPECT_EQ(result.q, c.q);
    EXPECT_EQ(result.k, c.k);
    EXPECT_EQ(result.dq, c.dq_out);
    EXPECT_EQ(result.dk, c.dk_out[0]);
  }
}

TEST(QkNormRope, MeanSquaresOfHeadsAreAddedUp) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    QkCase c = make_case({301, 3, 2, 11}, dtype, {}, Weights::none, 44);
    QkRank rank(c, 0, 1);
    DeviceTensor q({3}, DType::f32), k({2}, DType::f32);
    for (int time = 0; time < 2; ++time) ops::qk_add_mean_squares(q, k, rank.qkv, rank.options());
    auto root = [](const Tensor& sums, size_t head) { return std::sqrt(to_doubles(sums)[head] / 2); };
    for (int64_t head = 0; head < 3; ++head) {
      Values own = heads_of(c.q, 3, 11, head, 1);
      EXPECT_NEAR(root(q, size_t(head)), norm_of(own) / std::sqrt(double(own.size())), 1e-5);
    }
    Values last = heads_of(c.k, 2, 11, 1, 1);
    EXPECT_NEAR(root(k, 1), norm_of(last) / std::sqrt(double(last.size())), 1e-5);
  }
}

TEST(QkNormRope, OnTheMetaDeviceChecksAreAllThatRuns) {
  auto meta = [](const Shape& shape, DType dtype) { return Tensor(nullptr, shape, dtype, {DeviceKind::meta}); };
  QkNormRopeOptions options;
  options.heads = 2;
  options.kv_heads = 1;
  options.head_dim = options.rotated = 8;
  ops::QkNormRopeInputs inputs{
      meta({5, 32}, DType::bf16), meta({8}, DType::f32), {}, meta({16, 8}, DType::f32), meta({5}, DType::i32)};
  Tensor q = meta({5, 2, 8}, DType::bf16), k = meta({5, 1, 8}, DType::bf16);
  ops::qk_norm_rope_forward(q, k, inputs, {}, options);
  ops::qk_norm_rope_backward({meta({5, 32}, DType::bf16), meta({8}, DType::f32), {}}, {q, k, inputs, {}, options}, {});
  EXPECT_THROW(ops::qk_norm_rope_forward(k, q, inputs, {}, options), Error);
}

// The reference itself: its gradients are the derivatives of its outputs.
TEST(QkNormReference, GradientsAreFiniteDifferences) {
  uint64_t seed = 700;
  for (auto kind : {QkNormKind::none, QkNormKind::l2, QkNormKind::rms, QkNormKind::layer})
    for (auto scope : {QkNormScope::head, QkNormScope::full})
      for (int flags = 0; flags < 4; ++flags) {
        QkNormRopeOptions options;
        options.kind = kind;
        options.scope = scope;
        options.eps = 1e-2f;
        options.rotated = 4;
        options.zero_centered = flags & 1;
        options.after_rope = flags & 2;
        auto weights = kind == QkNormKind::none ? Weights::none : flags & 1 ? Weights::per_head : Weights::shared;
        QkCase c = make_case({2, 2, 1, 5}, DType::f32, options, weights, seed += 100);
        reference::QkSide side = reference_side(c, false);
        Values x = random_values(int64_t(c.q.size()), seed);
        auto gradients = reference::qk_norm_backward(side, c.dq_out, x);
        auto by_x = [&](const Values& at) { return dot(c.dq_out, reference::qk_norm_forward(side, at)); };
        EXPECT_TRUE(near_by_norm(gradients.dx, finite_differences(x, by_x), 1e-8));
        auto by_weight = [&](const Values& at) {
          reference::QkSide other = side;
          other.weight = at;
          return dot(c.dq_out, reference::qk_norm_forward(other, x));
        };
        EXPECT_TRUE(near_by_norm(gradients.d_weight, finite_differences(side.weight, by_weight), 1e-8));
      }
}

TEST(QkNormRope, RefusesWhatDoesNotFit) {
  QkNormRopeOptions options;
  options.rotated = 4;
  QkCase c = make_case({3, 2, 1, 8}, DType::f32, options, Weights::shared, 45);
  QkRank rank(c, 0, 1);
  auto message = [&](const ops::QkNormRopeInputs& inputs, const ops::QkNormRopeOptions& o) {
    try {
      ops::qk_norm_rope_forward(rank.q_out, rank.k_out, inputs, {}, o);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(rank.inputs(), rank.options()), "accepted");
  auto o = rank.options();
  o.heads = 3;
  EXPECT_THAT(message(rank.inputs(), o), ::testing::HasSubstr("qkv must be [n, 40], not [3, 32]"));
  o = rank.options();
  o.rotated = 5;
  EXPECT_THAT(message(rank.inputs(), o), ::testing::HasSubstr("5 of 8 features"));
  o = rank.options();
  o.scope = QkNormScope::full;
  EXPECT_THAT(message(rank.inputs(), o), ::testing::HasSubstr("a gain must be fp32 [2, 8], not fp32 [8]"));
  std::vector<int32_t> positions = {0, 64, 2};
  auto inputs = rank.inputs();
  inputs.positions = ConstTensor(positions.data(), {3}, DType::i32);
  EXPECT_THAT(message(inputs, rank.options()), ::testing::HasSubstr("position 64 of row 1 is outside"));
}

}  // namespace
}  // namespace keel
