// What a row must not see does not reach it: fully masked rows, windows, documents, poisoned memory.
#include <gtest/gtest.h>

#include "tests/support/attention_case.h"

namespace keel::testing {
namespace {

using reference::Attention;

AttentionCase simple_case(int64_t T, int64_t d, uint64_t seed, int64_t H = 2, int64_t G = 1) {
  AttentionCase problem;
  problem.x = {.B = 1, .T_q = T, .T_k = T, .H = H, .G = G, .d = d};
  problem.fill(seed);
  return problem;
}

Tensor rows(const DeviceTensor& tensor, int64_t begin, int64_t end) {
  return tensor.tensor.slice(1, begin, end);
}

bool all_zero(const ConstTensor& tensor) {
  for (double value : to_doubles(tensor))
    if (value != 0) return false;
  return true;
}

bool all_finite(const ConstTensor& tensor) {
  for (double value : to_doubles(tensor))
    if (!std::isfinite(value)) return false;
  return true;
}

TEST(AttentionMask, AFullyMaskedRowGivesZeroAndNoGradient) {  // CASES R14
  AttentionCase whole = simple_case(4, 8, 1, 1, 1), without;
  whole.x.first_key = {0, 4, 0, 0};
  const AttentionRun run = run_attention(whole);
  EXPECT_TRUE(all_zero(rows(run.out, 1, 2)));
  EXPECT_TRUE(all_zero(rows(run.dq, 1, 2)));
  EXPECT_EQ(to_doubles(run.log_sum_exp)[1], -HUGE_VAL);
  for (auto field : {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv})
    EXPECT_TRUE(all_finite((run.*field).tensor));
  // The same rows, each in a problem without the masked row.
  for (int64_t row : {0, 2, 3}) {
    without = whole;
    without.x.T_q = 1;
    without.x.q_offset = row;
    without.x.first_key = {0};
    const auto only = [&](const Values& values) {
      return Values(&values[size_t(row * 8)], &values[size_t(row * 8)] + 8);
    };
    without.x.q = only(whole.x.q);
    without.d_out = only(whole.d_out);
    const AttentionRun alone = run_attention(without);
    EXPECT_TRUE(same_bits(rows(run.out, row, row + 1), alone.out));
    EXPECT_TRUE(same_bits(rows(run.dq, row, row + 1), alone.dq));
  }
  // The masked row adds nothing to any gradient, whatever it holds.
  AttentionCase poisoned = whole;
  std::fill_n(&poisoned.x.q[8], 8, std::nan(""));
  std::fill_n(&poisoned.d_out[8], 8, std::nan(""));
  const AttentionRun again = run_attention(poisoned);
  for (auto field :
       {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv, &AttentionRun::d_scale})
    EXPECT_TRUE(near_by_norm(again.*field, to_doubles(run.*field), 1e-6));
}

// CASES.md R17: which keys a row sees, read off d out / d v with one-hot values.
TEST(AttentionMask, AWindowCountsTheCurrentKey) {
  const auto seen_by = [](int64_t window, int64_t row) {
    AttentionCase problem = simple_case(6, 6, 3, 1, 1);
    problem.x.window = window;
    for (int64_t j = 0; j < 6; ++j)
      for (int64_t c = 0; c < 6; ++c) problem.x.v[size_t(j * 6 + c)] = j == c;
    const Values out = to_doubles(run_attention(problem).out);
    std::vector<int64_t> seen;
    for (int64_t j = 0; j < 6; ++j)
      if (out[size_t(row * 6 + j)] != 0) seen.push_back(j);
    return seen;
  };
  const size_t counts[] = {1, 2, 3, 3, 3, 3};
  for (int64_t row = 0; row < 6; ++row) {
    EXPECT_EQ(seen_by(3, row).size(), counts[row]);
    EXPECT_EQ(seen_by(1, row), std::vector<int64_t>{row});
  }
  EXPECT_EQ(seen_by(3, 5), (std::vector<int64_t>{3, 4, 5}));

  for (int64_t T : {6, test_device().kind == DeviceKind::cpu ? 200 : 70}) {
    AttentionCase full = simple_case(T, 12, 4), wide = full;
    const AttentionRun expected = run_attention(full);
    for (int64_t window : {T, T + 1, 10 * T}) {
      wide.x.window = window;
      const AttentionRun run = run_attention(wide);
      for (auto field : {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv})
        EXPECT_TRUE(same_bits(run.*field, expected.*field));
    }
    wide.x.window = T - 1;
    EXPECT_FALSE(same_bits(run_attention(wide).out, expected.out));
  }
}

// CASES.md R18.
TEST(AttentionMask, PackedDocumentsDoNotSeeEachOther) {
  AttentionCase packed = simple_case(8, 16, 5);
  const Attention& x = packed.x;
  packed.x.first_key = {0, 0, 0, 0, 0, 5, 5, 5};
  AttentionCase alone = packed;
  alone.x.T_q = alone.x.T_k = 3;
  alone.x.first_key.clear();
  alone.x.q.assign(x.q.begin() + 5 * 32, x.q.end());
  alone.x.k.assign(x.k.begin() + 5 * 16, x.k.end());
  alone.x.v.assign(x.v.begin() + 5 * 16, x.v.end());
  alone.d_out.assign(packed.d_out.begin() + 5 * 32, packed.d_out.end());
  const AttentionRun both = run_attention(packed), second = run_attention(alone);
  for (auto field : {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv})
    EXPECT_TRUE(near_by_norm(rows(both.*field, 5, 8), to_doubles(second.*field), kFloat32));

  AttentionCase changed = packed;
  for (Values* values : {&changed.x.q, &changed.x.k, &changed.x.v, &changed.d_out})
    for (size_t i = 0; i < values->size() / 8 * 5; ++i) (*values)[i] = float(3 - 2 * (*values)[i]);
  const AttentionRun other = run_attention(changed);
  for (auto field : {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv})
    EXPECT_TRUE(same_bits(rows(both.*field, 5, 8), rows(other.*field, 5, 8)));
  EXPECT_FALSE(same_bits(rows(both.out, 0, 5), rows(other.out, 0, 5)));
}

// NaN and infinity in keys, values and queries reach exactly the rows and keys that see them.
void expect_poison_stays(AttentionCase clean, int64_t key, int64_t query, double poison) {
  const Attention& x = clean.x;
  AttentionCase dirty = clean;
  if (key >= 0) {
    std::fill_n(&dirty.x.k[size_t(key * x.G * x.d)], x.G * x.d, poison);
    std::fill_n(&dirty.x.v[size_t(key * x.G * x.d)], x.G * x.d, poison);
  }
  if (query >= 0) {
    std::fill_n(&dirty.x.q[size_t(query * x.H * x.d)], x.H * x.d, poison);
    std::fill_n(&dirty.d_out[size_t(query * x.H * x.d)], x.H * x.d, poison);
  }
  const AttentionRun expected = run_attention(clean), run = run_attention(dirty);
  const auto row_is_hit = [&](int64_t t) { return t == query || (key >= 0 && x.sees(0, t, key)); };
  const auto key_is_hit = [&](int64_t j) {
    for (int64_t t = 0; t < x.T_q; ++t)
      if (row_is_hit(t) && x.sees(0, t, j)) return true;
    return false;
  };
  for (int64_t t = 0; t < x.T_q; ++t) {
    if (row_is_hit(t)) {
      EXPECT_FALSE(all_finite(rows(run.out, t, t + 1)) && all_finite(rows(run.dq, t, t + 1))) << t;
      continue;
    }
    ASSERT_TRUE(same_bits(rows(run.out, t, t + 1), rows(expected.out, t, t + 1))) << t;
    ASSERT_TRUE(same_bits(rows(run.dq, t, t + 1), rows(expected.dq, t, t + 1))) << t;
  }
  for (int64_t j = 0; j < x.T_k; ++j) {
    if (key_is_hit(j)) continue;
    ASSERT_TRUE(near_by_norm(rows(run.dk, j, j + 1), to_doubles(rows(expected.dk, j, j + 1)), 1e-6, 1e-6)) << j;
    ASSERT_TRUE(near_by_norm(rows(run.dv, j, j + 1), to_doubles(rows(expected.dv, j, j + 1)), 1e-6, 1e-6)) << j;
  }
}

TEST(AttentionMask, PoisonStaysWhereItIsSeen) {
  const bool many = !on_stand_in();  // whose threads take turns on the CPU: fewer cases
  using Rows = std::vector<int64_t>;
  for (double poison : {std::nan(""), HUGE_VAL}) {
    for (int64_t key : many ? Rows{0, 3, 61, 131, 149} : Rows{61})
      expect_poison_stays(simple_case(150, 20, 6), key, -1, poison);
    for (int64_t query : many ? Rows{0, 50, 149} : Rows{50})
      expect_poison_stays(simple_case(150, 20, 7), -1, query, poison);
    AttentionCase half = simple_case(150, 20, 10);
    half.dtype = DType::bf16;
    half.fill(10);
    expect_poison_stays(half, 131, 40, poison);
    if (!many && std::isinf(poison)) return;
    for (DType dtype : {DType::f32, DType::bf16}) {
      AttentionCase windowed = simple_case(150, 20, 8);
      windowed.x.window = 5;
      AttentionCase documents = simple_case(150, 20, 9);
      for (int64_t t = 0; t < 150; ++t) documents.x.first_key.push_back(t / 37 * 37);
      for (AttentionCase* problem : {&windowed, &documents}) {
        problem->dtype = dtype;
        problem->fill(8);
      }
      expect_poison_stays(windowed, 40, -1, poison);
      expect_poison_stays(windowed, -1, 77, poison);
      expect_poison_stays(documents, 80, -1, poison);
      expect_poison_stays(documents, -1, 36, poison);
    }
  }
}

// Finite values whose scores are not leave NaN in memory that is used again.
TEST(AttentionMask, ABlownCallLeavesNothingForTheNext) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    AttentionCase problem = simple_case(48, 16, 12);
    problem.dtype = dtype;
    problem.x.T_q = 7;
    problem.x.q_offset = 41;
    problem.fill(12);
    const AttentionRun before = run_attention(problem);
    AttentionCase blown = simple_case(48, 16, 12);
    blown.dtype = dtype;
    blown.fill(12, 1e30);
    run_attention(blown);
    const AttentionRun after = run_attention(problem);
    for (auto field : {&AttentionRun::out, &AttentionRun::dq, &AttentionRun::dk, &AttentionRun::dv})
      EXPECT_TRUE(same_bits(before.*field, after.*field));
  }
}

TEST(AttentionMask, KeysThatNobodySeesGetNoGradient) {
  AttentionCase problem = simple_case(140, 16, 11);
  problem.x.q_offset = -10;  // rows 0 to 9 see nothing, keys 130 to 139 are seen by none
  const AttentionRun run = run_attention(problem);
  EXPECT_TRUE(all_zero(rows(run.out, 0, 10)));
  EXPECT_TRUE(all_zero(rows(run.dq, 0, 10)));
  EXPECT_TRUE(all_zero(rows(run.dk, 130, 140)));
  EXPECT_TRUE(all_zero(rows(run.dv, 130, 140)));
  EXPECT_FALSE(all_zero(rows(run.dv, 129, 130)));
}

}  // namespace
}  // namespace keel::testing
