#include "framework/ops/adamw.h"

#include <omp.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/compare.h"
#include "tests/support/reference/adamw.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

// A flat arena of n elements in mid-training.
struct Arena {
  Arena(int64_t n, uint64_t seed)
      : master(random_tensor({n}, DType::f32, seed)),
        moment1(random_tensor({n}, DType::f32, seed + 1, 0.1)),
        moment2({n}, DType::f32),
        compute({n}, DType::bf16),
        gradient(random_tensor({n}, DType::f32, seed + 2)) {
    Values second = random_values(n, seed + 3, 0.1);
    for (double& value : second) value *= value;
    set_values(moment2, second);
  }
  AdamwState state(int64_t begin, int64_t end, bool with_copy = true) const {
    auto part = [&](const DeviceTensor& whole) { return whole.tensor.slice(0, begin, end); };
    return {part(master), part(moment1), part(moment2), with_copy ? part(compute) : Tensor()};
  }
  AdamwState state() const { return state(0, master.tensor.elements()); }
  DeviceTensor master, moment1, moment2, compute, gradient;
};

AdamwStep typical_step() {
  return {
      .lr = 3e-3f, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8f, .decay = 3e-4f, .gradient_scale = 0.37f, .updates = 7};
}

TEST(Adamw, FirstStepWorkedByHand) {
  // m = 0.1 * 2 = 0.2, v = 0.05 * 4 = 0.2; both corrections give g = 2 and g^2 = 4: the step is lr * 2 / 2, and the
  // weight decays by 0.001 * 10.
  DeviceTensor w = tensor_of({1}, DType::f32, {10}), m({1}, DType::f32), v({1}, DType::f32), c({1}, DType::bf16);
  DeviceTensor g = tensor_of({1}, DType::f32, {4});
  AdamwStep step{.lr = 0.5f, .beta1 = 0.9, .beta2 = 0.95, .eps = 0, .decay = 0.001f, .gradient_scale = 0.5f};
  double squares = adamw({w, m, v, c}, g, step);
  EXPECT_NEAR(to_doubles(w)[0], 10 - 0.5 - 0.01, 1e-6);
  EXPECT_NEAR(to_doubles(m)[0], 0.2, 1e-7);
  EXPECT_NEAR(to_doubles(v)[0], 0.2, 1e-7);
  EXPECT_EQ(to_doubles(c)[0], 9.5);  // 9.49 lies between 9.4375 and 9.5
  EXPECT_NEAR(squares, 0.51 * 0.51, 1e-5);
}

TEST(Adamw, EpsilonStandsOutsideTheRoot) {
  // g = 1e-4, eps = 1e-4: half a step. Inside the root it would be 1e-4 / sqrt(1e-8 + 1e-4), a hundredth.
  DeviceTensor w({1}, DType::f32), m({1}, DType::f32), v({1}, DType::f32), g = tensor_of({1}, DType::f32, {1e-4});
  adamw({w, m, v, {}}, g, {.lr = 1, .eps = 1e-4f});
  EXPECT_NEAR(to_doubles(w)[0], -0.5, 1e-5);
}

// tests/golden/README.md says how these came about.
TEST(Adamw, EqualsGoldenUpdates) {
  nlohmann::json golden = nlohmann::json::parse(std::ifstream(KEEL_GOLDEN_DIR "/adamw.json"));
  Values start = golden["start"];
  ASSERT_GE(golden["cases"].size(), 6u);
  for (const auto& one : golden["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    auto n = int64_t(start.size());
    DeviceTensor w = tensor_of({n}, DType::f32, start), m({n}, DType::f32), v({n}, DType::f32);
    double weight_decay = one["weight_decay"], top_rate = one["lr"];
    for (size_t i = 0; i < one["factors"].size(); ++i) {
      double factor = one["factors"][i], rate = top_rate * factor;
      DeviceTensor g = tensor_of({n}, DType::f32, golden["gradients"][i]);
      adamw({w, m, v, {}}, g,
            {.lr = float(rate),
             .beta1 = one["beta1"],
             .beta2 = one["beta2"],
             .eps = one["eps"],
             .decay = float((one["decay"] == "independent" ? factor : rate) * weight_decay),
             .updates = int64_t(i) + 1});
      EXPECT_TRUE(near_by_norm(w, one["parameters"][i], 1e-6));
      EXPECT_TRUE(near_by_norm(m, one["first_moments"][i], 1e-6));
      EXPECT_TRUE(near_by_norm(v, one["second_moments"][i], 1e-6));
    }
  }
}

TEST(Adamw, EqualsReferenceOverManyUpdates) {
  for (uint64_t round = 0; round < 24; ++round) {
    int64_t n = random_integer(11, round, 1, 3000);
    SCOPED_TRACE(n);
    Arena arena(n, 10 * round);
    std::vector<reference::AdamwElement> expected(static_cast<size_t>(n));
    Values w = to_doubles(arena.master), m = to_doubles(arena.moment1), v = to_doubles(arena.moment2);
    for (size_t i = 0; i < w.size(); ++i) expected[i] = {w[i], m[i], v[i]};
    AdamwStep step = typical_step();
    for (int update = 0; update < 5; ++update, ++step.updates) {
      fill_random(arena.gradient, 1000 * round + uint64_t(update));
      Values gradient = to_doubles(arena.gradient), before = to_doubles(arena.master);
      double squares = adamw(arena.state(), arena.gradient, step);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = reference::adamw(expected[i], gradient[i], step);
      Values change = difference(to_doubles(arena.master), before);
      EXPECT_NEAR(std::sqrt(squares), norm_of(change), 1e-5 * norm_of(change));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      w[i] = expected[i].weight;
      m[i] = expected[i].moment1;
      v[i] = expected[i].moment2;
    }
    EXPECT_TRUE(near_by_norm(arena.master, w, 1e-6));
    EXPECT_TRUE(near_by_norm(arena.moment1, m, 1e-6));
    EXPECT_TRUE(near_by_norm(arena.moment2, v, 1e-6));
    DeviceTensor rounded({n}, DType::bf16);
    set_values(rounded, to_doubles(arena.master));
    EXPECT_TRUE(same_bits(arena.compute, rounded));
  }
}

TEST(Adamw, SlicesHaveTheBitsOfTheWhole) {
  constexpr int64_t kSize = 100003;
  Arena whole(kSize, 1), sliced(kSize, 1), single(kSize, 1);
  adamw(whole.state(), whole.gradient, typical_step());
  for (int64_t begin = 0, size = 1; begin < kSize; begin += size, size = size * 3 % 1009) {
    int64_t end = std::min(begin + size, kSize);
    adamw(sliced.state(begin, end), sliced.gradient.tensor.slice(0, begin, end), typical_step());
  }
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  adamw(single.state(), single.gradient, typical_step());
  omp_set_num_threads(threads);
  for (const Arena* other : {&sliced, &single}) {
    EXPECT_TRUE(same_bits(whole.master, other->master));
    EXPECT_TRUE(same_bits(whole.moment1, other->moment1));
    EXPECT_TRUE(same_bits(whole.moment2, other->moment2));
    EXPECT_TRUE(same_bits(whole.compute, other->compute));
  }
}

TEST(Adamw, SumDoesNotDependOnThreads) {
  Arena one(50021, 3), three(50021, 3);
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  double with_one = adamw(one.state(), one.gradient, typical_step());
  omp_set_num_threads(3);
  double with_three = adamw(three.state(), three.gradient, typical_step());
  omp_set_num_threads(threads);
  EXPECT_EQ(with_one, with_three);
}

TEST(Adamw, WorksWithoutAComputeCopyAndOnNothing) {
  Arena with(77, 5), without(77, 5);
  double a = adamw(with.state(), with.gradient, typical_step());
  double b = adamw(without.state(0, 77, false), without.gradient, typical_step());
  EXPECT_EQ(a, b);
  EXPECT_TRUE(same_bits(with.master, without.master));
  EXPECT_EQ(adamw(with.state(5, 5), with.gradient.tensor.slice(0, 5, 5), typical_step()), 0);
}

TEST(Adamw, ZeroGradientAndMomentsOnlyDecay) {
  DeviceTensor w = tensor_of({9}, DType::f32, Values(9, 2.0)), m({9}, DType::f32), v({9}, DType::f32),
               g({9}, DType::f32);
  adamw({w, m, v, {}}, g, {.lr = 1, .decay = 0.25f});
  EXPECT_EQ(to_doubles(w), Values(9, 1.5));
}

TEST(Adamw, NonFiniteGradientShowsInTheSum) {
  Arena arena(20, 1);
  set_element(arena.gradient, 13, INFINITY);
  EXPECT_TRUE(std::isnan(adamw(arena.state(), arena.gradient, typical_step())));
}

TEST(Adamw, ErrorsNameBothValues) {
  Arena arena(8, 1);
  auto message = [&](const AdamwState& state, const AdamwStep& step) -> std::string {
    try {
      adamw(state, arena.gradient, step);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(message(arena.state(0, 5), typical_step()), ::testing::HasSubstr("[5] for gradient [8]"));
  AdamwStep zeroth = typical_step();
  zeroth.updates = 0;
  EXPECT_THAT(message(arena.state(), zeroth), ::testing::HasSubstr("update 0"));
  AdamwState state = arena.state();
  state.compute = arena.master.tensor;
  EXPECT_THAT(message(state, typical_step()), ::testing::HasSubstr("must be bf16"));
}

}  // namespace
}  // namespace keel::ops
