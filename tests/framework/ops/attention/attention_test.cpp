#include "framework/ops/attention/attention.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tests/support/attention_case.h"

namespace keel::testing {
namespace {

using reference::Attention;

// Documents of these lengths one after the other, again and again: the key where each row's document starts.
std::vector<int64_t> document_starts(const Attention& x, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < x.B; ++b) {
    int64_t begin = 0;
    size_t next = size_t(b) % lengths.size();
    for (int64_t position = 0; position < x.q_offset + x.T_q; ++position) {
      while (position >= begin + lengths[next]) {
        begin += lengths[next];
        next = (next + 1) % lengths.size();
      }
      if (position >= x.q_offset) starts.push_back(begin);
    }
  }
  return starts;
}

bool on_cpu() {
  return test_device().kind == DeviceKind::cpu;
}

AttentionCase random_case(uint64_t seed, DType dtype) {
  const auto pick = [&](uint64_t index, std::vector<int64_t> values) {
    return values[size_t(random_integer(seed, index, 0, int64_t(values.size())))];
  };
  AttentionCase problem;
  problem.dtype = dtype;
  Attention& x = problem.x;
  const bool many = !on_stand_in();  // whose threads take their turns on the CPU: fewer and smaller problems there
  x.B = many ? pick(1, {1, 2, 3}) : pick(1, {1, 1, 2});
  x.G = many ? pick(2, {1, 2, 3}) : pick(2, {1, 1, 2});
  x.H = x.G * (many ? pick(3, {1, 2, 4}) : pick(3, {1, 2, 2}));
  x.d = pick(4, {4, 17, 48, 64, 80, 128, 200, 256});
  x.T_q = pick(5, {1, 2, 7, 33, 48, 49, 97, 130, 150});
  x.T_k = pick(6, {x.T_q, x.T_q, x.T_q + 5, x.T_q + 140});
  x.q_offset = x.T_k - x.T_q;
  x.causal = pick(7, {0, 1, 1, 1}) != 0;
  if (x.causal) x.window = pick(8, {0, 0, 1, 3, 40, x.T_k, x.T_k + 100});
  x.softcap = double(pick(9, {0, 0, 2, 30}));
  if (pick(10, {0, 1})) x.first_key = document_starts(x, {3, 1, 0, 20, 1, 1, 60});
  problem.fill(seed);
  return problem;
}

std::string text_of(const AttentionCase& problem) {
  const Attention& x = problem.x;
  return fmt::format("{} B {} T_q {} T_k {} H {} G {} d {} causal {} window {} softcap {} documents {}",
                     name_of(problem.dtype), x.B, x.T_q, x.T_k, x.H, x.G, x.d, x.causal, x.window, x.softcap,
                     !x.first_key.empty());
}

// A log-sum-exp of -infinity on both sides is replaced by 0.
void same_where_blind(Values& actual, Values& expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (std::isinf(expected[i]) && expected[i] == actual[i]) actual[i] = expected[i] = 0;
}

void expect_near_reference(const AttentionCase& problem) {
  SCOPED_TRACE(text_of(problem));
  const Attention& x = problem.x;
  const AttentionRun run = run_attention(problem);
  reference::AttentionResult expected = reference::attention_forward(x);
  const reference::AttentionGradient gradient = reference::attention_backward(x, problem.d_out);
  const bool half = problem.dtype == DType::bf16;
  const double tolerance = one_op_tolerance(problem.dtype), of_scores = half ? 1e-2 : kFloat32;
  double all = 0;
  for (const Values* values : {&gradient.dq, &gradient.dk, &gradient.dv, &gradient.d_scale})
    all += std::pow(norm_of(*values), 2);
  // Rounding that stays where sums cancel, as in a row that sees one key: true gradient 0.
  const double slack = 3e-7 * std::sqrt(all);
  const double scale_slack = (half ? 3e-4 : 1e-7) * norm_of(x.q) * norm_of(gradient.dq) / std::abs(x.scale[0]);

  Values log_sum_exp = to_doubles(run.log_sum_exp);
  same_where_blind(log_sum_exp, expected.log_sum_exp);
  EXPECT_TRUE(near_by_norm(run.out, expected.out, tolerance));
  EXPECT_TRUE(near_by_norm(log_sum_exp, expected.log_sum_exp, kFloat32));
  EXPECT_TRUE(near_by_norm(run.largest_logit, expected.largest_logit, kFloat32));
  EXPECT_TRUE(near_by_norm(run.entropy, expected.entropy, kFloat32, 1e-5));
  for (int64_t h = 0; h < x.H; ++h) {
    const reference::AttentionPlace& place = expected.place[size_t(h)];
    EXPECT_EQ(place_of(run, h), (ops::LogitPlace{place.b + kFirstSequence, place.t, place.j})) << "head " << h;
  }
  EXPECT_TRUE(near_by_norm(run.dv, gradient.dv, tolerance, slack));
  const RowTolerance loose = {1e-4, 1e-4}, by_row = half ? RowTolerance() : loose;
  EXPECT_TRUE(near_by_rows(to_doubles(run.out), expected.out, x.d, by_row));
  EXPECT_TRUE(near_by_rows(to_doubles(run.dv), gradient.dv, x.d, by_row));
  if (norm_of(gradient.dq) < 1e-12 * std::sqrt(all)) {  // every row sees one key: only rounding is left
    for (const DeviceTensor* tensor : {&run.dq, &run.dk, &run.d_scale})
      EXPECT_LT(norm_of(to_doubles(*tensor)), 1e-5 * std::sqrt(all));
    return;
  }
  EXPECT_TRUE(near_by_norm(run.dq, gradient.dq, of_scores, slack));
  EXPECT_TRUE(near_by_norm(run.dk, gradient.dk, of_scores, slack));
  EXPECT_TRUE(near_by_norm(run.d_scale, gradient.d_scale, of_scores, scale_slack));
  // sum(d_out * out) inherits the rounding of out: dq and dk are as much less exact by row as by norm.
  const RowTolerance of_score_rows = half ? RowTolerance{8e-3, 5e-2} : loose;
  EXPECT_TRUE(near_by_rows(to_doubles(run.dq), gradient.dq, x.d, of_score_rows));
  EXPECT_TRUE(near_by_rows(to_doubles(run.dk), gradient.dk, x.d, of_score_rows));
}

TEST(AttentionReference, GradientsAreFiniteDifferences) {
  for (double softcap : {0.0, 1.5})
    for (int64_t window : {0, 2}) {
      AttentionCase problem;
      Attention& x = problem.x;
      x = {.B = 2, .T_q = 5, .T_k = 6, .H = 4, .G = 2, .d = 3, .causal = true, .q_offset = 1};
      x.window = window;
      x.softcap = softcap;
      x.first_key = document_starts(x, {2, 1, 5});
      x.first_key[3] = 100;  // sees nothing
      problem.fill(3);
      const auto gradient = reference::attention_backward(x, problem.d_out);
      const auto by_differences = [&](std::vector<double> Attention::*field) {
        return finite_differences(x.*field, [&](const Values& values) {
          Attention moved = x;
          moved.*field = values;
          return dot(reference::attention_forward(moved).out, problem.d_out);
        });
      };
      EXPECT_TRUE(near_by_norm(gradient.dq, by_differences(&Attention::q), 1e-8));
      EXPECT_TRUE(near_by_norm(gradient.dk, by_differences(&Attention::k), 1e-8));
      EXPECT_TRUE(near_by_norm(gradient.dv, by_differences(&Attention::v), 1e-8));
      EXPECT_TRUE(near_by_norm(gradient.d_scale, by_differences(&Attention::scale), 1e-8));
      EXPECT_TRUE(fails(near_by_norm(scaled(gradient.dq, 1.001), by_differences(&Attention::q), 1e-8)));
    }
}

TEST(Attention, Fp32EqualsReference) {
  for (uint64_t seed = 1; seed <= (on_stand_in() ? 20 : 60); ++seed)
    expect_near_reference(random_case(seed, DType::f32));
}

TEST(Attention, Bf16EqualsReference) {
  for (uint64_t seed = 101; seed <= (on_stand_in() ? 120 : 160); ++seed)
    expect_near_reference(random_case(seed, DType::bf16));
}

std::vector<std::pair<int64_t, int64_t>> pairs(const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t a : first)
    for (int64_t b : second) all.emplace_back(a, b);
  return all;
}

TEST(Attention, EveryHeadSizeAndLength) {
  using Sizes = std::vector<int64_t>;
  const std::vector<DType> dtypes = on_cpu() ? std::vector{DType::f32} : std::vector{DType::f32, DType::bf16};
  for (DType dtype : dtypes)
    for (auto [d, T] : pairs(on_stand_in() ? Sizes{17, 64, 96, 128, 256} : Sizes{4, 17, 48, 64, 80, 96, 128, 200, 256},
                             on_stand_in() ? Sizes{47, 140} : Sizes{1, 47, 128, 300})) {
      AttentionCase problem;
      problem.dtype = dtype;
      problem.x = {.B = 1, .T_q = T, .T_k = T, .H = 2, .G = 1, .d = d};
      problem.fill(uint64_t(d * 1000 + T));
      expect_near_reference(problem);
    }
}

// Sampled rows and keys of one sequence, causal, where the whole reference would take minutes. Gradients of keys need
// log-sum-exp and output of every row: the run's own, which are checked at the sampled rows.
void expect_near_at_samples(const AttentionCase& problem, int64_t samples) {
  const Attention& x = problem.x;
  const int64_t T = x.T_q, d = x.d, per_kv = x.H / x.G;
  const AttentionRun run = run_attention(problem);
  const auto row = [&](const Values& of, int64_t heads, int64_t t, int64_t h) {
    return &of[size_t((t * heads + h) * d)];
  };
  const auto product = [&](const double* a, const double* b) { return std::inner_product(a, a + d, b, 0.0); };
  const auto add = [&](Values& to, double factor, const double* from) {
    for (int64_t c = 0; c < d; ++c) to[size_t(c)] += factor * from[c];
  };
  const Values out = to_doubles(run.out), log_sum_exp = to_doubles(run.log_sum_exp);
  Values found[5], expected[5];  // out, log-sum-exp, dq, dk, dv
  const auto compare = [&](size_t which, const double* actual, const Values& values) {
    found[which].insert(found[which].end(), actual, actual + values.size());
    expected[which].insert(expected[which].end(), values.begin(), values.end());
  };
  const Values dq = to_doubles(run.dq), dk = to_doubles(run.dk), dv = to_doubles(run.dv);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t h = i % x.H, g = h / per_kv, t = i * (T - 1) / (samples - 1);
    const double scale = x.scale[size_t(h)];
    // Row t: two passes over the keys that it sees.
    Values p(size_t(t + 1)), dp(size_t(t + 1)), of_out(size_t(d), 0), of_dq(size_t(d), 0), of_dk(size_t(d), 0),
        of_dv(size_t(d), 0);
    for (int64_t j = 0; j <= t; ++j) p[size_t(j)] = scale * product(row(x.q, x.H, t, h), row(x.k, x.G, j, g));
    const double largest = *std::ranges::max_element(p);
    double sum = 0, mean = 0;
    for (double& value : p) sum += value = std::exp(value - largest);
    for (int64_t j = 0; j <= t; ++j) {
      p[size_t(j)] /= sum;
      dp[size_t(j)] = product(row(problem.d_out, x.H, t, h), row(x.v, x.G, j, g));
      mean += p[size_t(j)] * dp[size_t(j)];
      add(of_out, p[size_t(j)], row(x.v, x.G, j, g));
    }
    for (int64_t j = 0; j <= t; ++j) add(of_dq, scale * p[size_t(j)] * (dp[size_t(j)] - mean), row(x.k, x.G, j, g));
    // Key t: over the rows that see it, of all heads that share it.
    for (int64_t head = g * per_kv; head < (g + 1) * per_kv; ++head)
      for (int64_t r = t; r < T; ++r) {
        const double s = x.scale[size_t(head)] * product(row(x.q, x.H, r, head), row(x.k, x.G, t, g));
        const double* d_out = row(problem.d_out, x.H, r, head);
        const double weight = std::exp(s - log_sum_exp[size_t(head * T + r)]);
        const double ds = weight * (product(d_out, row(x.v, x.G, t, g)) - product(d_out, row(out, x.H, r, head)));
        add(of_dk, x.scale[size_t(head)] * ds, row(x.q, x.H, r, head));
        add(of_dv, weight, d_out);
      }
    compare(0, row(out, x.H, t, h), of_out);
    compare(1, &log_sum_exp[size_t(h * T + t)], {largest + std::log(sum)});
    compare(2, row(dq, x.H, t, h), of_dq);
    compare(3, row(dk, x.G, t, g), of_dk);
    compare(4, row(dv, x.G, t, g), of_dv);
  }
  const double of_scores = problem.dtype == DType::bf16 ? 1e-2 : kFloat32;
  const double tolerance = one_op_tolerance(problem.dtype);
  const double tolerances[5] = {tolerance, kFloat32, of_scores, of_scores, tolerance};
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(near_by_norm(found[i], expected[i], tolerances[i])) << i;
}

AttentionCase long_case(int64_t T, DType dtype) {
  AttentionCase problem;
  problem.dtype = dtype;
  problem.x = {.B = 1, .T_q = T, .T_k = T, .H = 4, .G = 2, .d = 128};
  problem.fill(uint64_t(T));
  return problem;
}

TEST(Attention, SampledRowsAndKeysEqualDouble) {
  for (DType dtype : {DType::f32, DType::bf16}) expect_near_at_samples(long_case(150, dtype), 12);
}

TEST(Attention, LongSequences) {
  if (!on_hardware()) GTEST_SKIP() << "takes minutes without a GPU";
  for (DType dtype : {DType::f32, DType::bf16}) expect_near_at_samples(long_case(8192, dtype), 24);
}

TEST(Attention, SumsAndMaximaAreAddedToWhatIsThere) {
  AttentionCase problem;
  problem.x = {.B = 1, .T_q = 9, .T_k = 9, .H = 2, .G = 2, .d = 8};
  problem.fill(5);
  const AttentionRun run = run_attention(problem);
  const Attention& x = problem.x;
  const Shape shape = {1, 9, 2, 8};
  const DeviceTensor q = tensor_of(shape, DType::f32, x.q), k = tensor_of(shape, DType::f32, x.k);
  const DeviceTensor v = tensor_of(shape, DType::f32, x.v), d_out = tensor_of(shape, DType::f32, problem.d_out);
  const DeviceTensor out(shape, DType::f32), dq(shape, DType::f32), dk(shape, DType::f32), dv(shape, DType::f32);
  const DeviceTensor log_sum_exp({1, 2, 9}, DType::f32), scale = tensor_of({2}, DType::f32, x.scale);
  const DeviceTensor largest = tensor_of({2}, DType::f32, {0, 1000}), entropy = tensor_of({2}, DType::f32, {10, 0});
  const DeviceTensor d_scale = tensor_of({2}, DType::f32, {5, 0});
  const DeviceTensor place = device_tensor(std::vector<int64_t>{7, 7});
  const ops::AttentionOutputs outputs = {out, log_sum_exp, largest, entropy, place};
  ops::attention_forward(outputs, {q, k, v, scale, {}}, {});
  ops::attention_backward({dq, dk, dv, d_scale}, d_out, outputs, {q, k, v, scale, {}}, {});
  EXPECT_EQ(to_doubles(largest)[0], to_doubles(run.largest_logit)[0]);
  EXPECT_EQ(to_doubles(largest)[1], 1000);
  EXPECT_EQ(ops::LogitPlace::of(host_values<int64_t>(place)[0]).key, place_of(run, 0).key);
  EXPECT_EQ(host_values<int64_t>(place)[1], 7) << "not raised";
  EXPECT_FLOAT_EQ(float(to_doubles(entropy)[0]), float(to_doubles(run.entropy)[0]) + 10);
  EXPECT_FLOAT_EQ(float(to_doubles(d_scale)[0]), float(to_doubles(run.d_scale)[0]) + 5);
  ops::attention_forward({out, log_sum_exp, largest, {}}, {q, k, v, scale, {}}, {});
  ops::attention_backward({dq, dk, dv, {}}, d_out, outputs, {q, k, v, scale, {}}, {});
  EXPECT_TRUE(same_bits(dk, run.dk));
}

AttentionCase with_logits(int64_t T, const std::function<double(int64_t, int64_t)>& q_of,
                          const std::function<double(int64_t, int64_t)>& k_of) {
  AttentionCase problem;
  problem.x = {.B = 1, .T_q = T, .T_k = T, .H = 1, .G = 1, .d = 4};
  problem.fill(9);
  problem.x.scale = {1};
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < 4; ++c) {
      problem.x.q[size_t(t * 4 + c)] = q_of(t, c);
      problem.x.k[size_t(t * 4 + c)] = k_of(t, c);
    }
  return problem;
}

void expect_finite(const AttentionRun& run) {
  for (const DeviceTensor* tensor : {&run.out, &run.log_sum_exp, &run.dq, &run.dk, &run.dv, &run.d_scale})
    for (double value : to_doubles(*tensor)) ASSERT_TRUE(std::isfinite(value));
}

TEST(Attention, HugeLogitsStayFiniteAndRight) {
  // +-1e4 in steps of 1: exact in fp32, so that the reference holds to the usual tolerance but for log-sum-exp's bits.
  const AttentionCase steps = with_logits(
      200, [](int64_t t, int64_t c) { return c == 0 ? (t % 2 ? 100.0 : -100.0) : double(c == 1); },
      [](int64_t j, int64_t c) { return c == 0 ? 100.0 : double(c == 1 ? j % 7 : 0); });
  const AttentionRun run = run_attention(steps);
  const auto expected = reference::attention_forward(steps.x);
  expect_finite(run);
  EXPECT_TRUE(near_by_norm(run.out, expected.out, kFloat32));
  EXPECT_TRUE(near_by_norm(run.log_sum_exp, expected.log_sum_exp, 1e-6));
  EXPECT_EQ(to_doubles(run.largest_logit)[0], 10006);
  // 1e30: far beyond the exponential's range, on one key only.
  const AttentionCase one_key = with_logits(
      150, [](int64_t, int64_t c) { return c == 0 ? 1e15 : 0.0; },
      [](int64_t j, int64_t c) { return c == 0 && j == 60 ? 1e15 : 0.0; });
  const AttentionRun peaked = run_attention(one_key);
  expect_finite(peaked);
  EXPECT_TRUE(near_by_norm(peaked.out, reference::attention_forward(one_key.x).out, kFloat32));
  EXPECT_FLOAT_EQ(float(to_doubles(peaked.largest_logit)[0]), 1e30f);
  EXPECT_EQ(to_doubles(peaked.out)[149 * 4], float(one_key.x.v[60 * 4]));
}

// |s| is 8 from rows 60 and 100 and of the second sequence, in keys of two tiles and with both signs: the first counts.
TEST(Attention, OfEqualLogitsTheFirstPlaceCounts) {
  AttentionCase problem;
  problem.x = {.B = 2, .T_q = 150, .T_k = 150, .H = 2, .G = 1, .d = 4};
  problem.fill(9, 0.01);
  Attention& x = problem.x;
  x.scale = {1, -1};
  for (auto [row, sign] : {std::pair(100, 1), {60, -1}, {150 + 10, 1}})
    for (int64_t h : {0, 1}) x.q[size_t((row * 2 + h) * 4)] = 2 * sign;
  for (int64_t key : {140, 59, 3, 58, 150 + 2}) x.k[size_t(key * 4)] = 4;
  for (Values* values : {&x.q, &x.k})
    for (double& value : *values) value = std::abs(value) >= 1 ? value : 0;
  const AttentionRun run = run_attention(problem);
  for (int64_t h : {0, 1}) EXPECT_EQ(place_of(run, h), (ops::LogitPlace{kFirstSequence, 60, 3})) << h;
  x.window = 4;
  EXPECT_EQ(place_of(run_attention(problem), 1), (ops::LogitPlace{kFirstSequence, 60, 58}));
  x.window = 0;
  for (int64_t row = 0; row < 300; ++row) x.first_key.push_back(row % 150 / 75 * 75);  // row 60 sees 0 to 60
  for (int64_t key : {3, 58, 59}) x.k[size_t(key * 4)] = 0;
  EXPECT_EQ(place_of(run_attention(problem), 0), (ops::LogitPlace{kFirstSequence + 1, 10, 2}));
  for (double& value : x.q) value = 0;
  EXPECT_EQ(host_values<int64_t>(run_attention(problem).place), (std::vector<int64_t>{0, 0})) << "all are 0";
}

TEST(Attention, IdenticalLogitsGiveTheMeanAndTheEntropyOfAUniform) {
  const AttentionCase equal = with_logits(
      140, [](int64_t, int64_t) { return 50.0; }, [](int64_t, int64_t) { return 50.0; });
  const AttentionRun run = run_attention(equal);
  double entropy = 0, mean = 0;
  for (int64_t t = 0; t < 140; ++t) {
    entropy += std::log(double(t + 1));
    mean += equal.x.v[size_t(t * 4)] / 140;
  }
  EXPECT_NEAR(to_doubles(run.entropy)[0], entropy, 1e-5 * entropy);
  EXPECT_NEAR(to_doubles(run.out)[139 * 4], mean, 1e-6);
  EXPECT_NEAR(to_doubles(run.log_sum_exp)[139], 10000 + std::log(140.0), 2e-3);
  EXPECT_EQ(to_doubles(run.largest_logit)[0], 10000);
  expect_finite(run);
}

TEST(Attention, SameBitsAgainAndForwardAtAnyThreadCount) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t G : {1, 3}) {
      AttentionCase problem;
      problem.dtype = dtype;
      const int64_t T = on_stand_in() ? 140 : 290;
      problem.x = {.B = 1, .T_q = T, .T_k = T, .H = 3, .G = G, .d = 20};
      problem.fill(uint64_t(G));
      const AttentionRun alone = run_attention(problem, 1);
      for (int threads : on_stand_in() ? std::vector{3} : std::vector{1, 2, 3, 7}) {
        const AttentionRun run = run_attention(problem, threads), again = run_attention(problem, threads);
        for (auto field : {&AttentionRun::out, &AttentionRun::log_sum_exp, &AttentionRun::entropy, &AttentionRun::dq,
                           &AttentionRun::dk, &AttentionRun::dv, &AttentionRun::d_scale})
          EXPECT_TRUE(same_bits(run.*field, again.*field));
        for (auto field :
             {&AttentionRun::out, &AttentionRun::log_sum_exp, &AttentionRun::largest_logit, &AttentionRun::dq})
          EXPECT_TRUE(same_bits(run.*field, alone.*field)) << threads << " threads";
        for (auto field : {&AttentionRun::dk, &AttentionRun::dv, &AttentionRun::d_scale, &AttentionRun::entropy})
          EXPECT_TRUE(near_by_norm(run.*field, to_doubles(alone.*field), one_op_tolerance(dtype)));
      }
    }
}

TEST(Attention, HeadsAbove256AreRefusedOnlyOnAGpu) {
  AttentionCase problem;
  problem.x = {.B = 1, .T_q = 3, .T_k = 3, .H = 1, .G = 1, .d = 257};
  problem.fill(1);
  if (on_cpu()) return expect_near_reference(problem);
  try {
    run_attention(problem);
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("heads of size 257; CUDA has kernels up to 256"));
  }
}

// A100s and GeForces have less shared memory than the device that tests run on.
TEST(Attention, SmallerGpus) {
  if (!on_stand_in()) GTEST_SKIP() << "a real GPU's shared memory is what it is";
  const auto with_shared_bytes = [](const char* bytes, const auto& f) {
    setenv("KEEL_CUDA_HOST_SHARED_BYTES", bytes, 1);
    f();
    unsetenv("KEEL_CUDA_HOST_SHARED_BYTES");
  };
  const Device device = test_device();
  for (DType dtype : {DType::f32, DType::bf16}) {
    AttentionCase problem;
    problem.dtype = dtype;
    for (int64_t d : {96, 128}) {  // with tiles of their own there
      problem.x = {.B = 1, .T_q = 140, .T_k = 140, .H = 2, .G = 1, .d = d};
      problem.fill(76);
      with_shared_bytes("166912", [&] { expect_near_reference(problem); });
    }
    problem.x = {.B = 1, .T_q = 140, .T_k = 140, .H = 2, .G = 1, .d = 256};
    problem.x.first_key = document_starts(problem.x, {50, 1, 3, 60});
    problem.fill(77);
    with_shared_bytes("166912", [&] {  // sm_80
      ops::require_attention_fits(device, dtype, 256, true);
      expect_near_reference(problem);
    });
    with_shared_bytes("101376", [&] {  // sm_86, sm_89
      ops::require_attention_fits(device, dtype, 64, true);
      try {
        ops::require_attention_fits(device, dtype, 256, false);
        ADD_FAILURE() << "nothing thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("attention with heads of 256 needs"));
        EXPECT_THAT(error.what(), ::testing::HasSubstr("KiB of shared memory per block, and H200 stand-in"));
        EXPECT_THAT(error.what(), ::testing::HasSubstr("has 99"));
      }
      EXPECT_THROW(run_attention(problem), Error);
    });
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Device meta = {DeviceKind::meta};
  const Tensor q(nullptr, {1, 6, 4, 8}, DType::f32, meta), k(nullptr, {1, 6, 2, 8}, DType::f32, meta);
  const Tensor scale(nullptr, {4}, DType::f32, meta), log_sum_exp(nullptr, {1, 4, 6}, DType::f32, meta);
  ops::AttentionOutputs outputs = {q, log_sum_exp, scale, {}};
  const auto message = [&](const ops::AttentionInputs& inputs, const ops::AttentionOptions& options) -> std::string {
    try {
      ops::attention_forward(outputs, inputs, options);
      ops::attention_backward({q, k, k, scale}, q, outputs, inputs, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({q, k, k, scale, {}}, {}), "");
  const Tensor three(nullptr, {1, 6, 3, 8}, DType::f32, meta), half(nullptr, {1, 6, 2, 8}, DType::bf16, meta);
  EXPECT_EQ(message({q, three, three, scale, {}}, {}), "attention: 4 query heads cannot share 3 KV heads");
  EXPECT_EQ(message({q, k, half, scale, {}}, {}), "attention: v is bf16, fp32 is needed");
  EXPECT_EQ(message({q, k, three, scale, {}}, {}), "attention: v is [1, 6, 3, 8], [1, 6, 2, 8] is needed");
  EXPECT_EQ(message({q, k, k, scale.slice(0, 0, 3), {}}, {}), "attention: scale is [3], [4] is needed");
  EXPECT_EQ(message({q, k, k, scale, {}}, {.window = -1}), "attention: a window of -1 keys");
  EXPECT_EQ(message({q, k, k, scale, {}}, {.causal = false, .window = 3}),
            "attention: a window of 3 keys needs a causal mask");
  outputs.entropy = scale.slice(0, 0, 3);
  EXPECT_EQ(message({q, k, k, scale, {}}, {}), "attention: entropy is [3], [4] is needed");
  const ops::AttentionOutputs placed = {q, log_sum_exp, scale, {}, Tensor(nullptr, {4}, DType::i64, meta)};
  EXPECT_NO_THROW(ops::attention_forward(placed, {q, k, k, scale, {}}, {.first_sequence = (1 << 19) - 1}));
  EXPECT_THROW(ops::attention_forward(placed, {q, k, k, scale, {}}, {.first_sequence = 1 << 19}), Error);
}

}  // namespace
}  // namespace keel::testing
