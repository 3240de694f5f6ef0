#include "framework/ops/update/adamw.h"

#include <omp.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/compare.h"
#include "tests/support/golden.h"
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

struct Update {
  AdamwStep step;
  AdamwOptions options;
  float gradient_scale = 1;
  bool made = true;
};

Update typical() {
  return {.step = {.lr = 3e-3, .decay = 3e-4, .updates = 7}, .options = {}, .gradient_scale = 0.37f};
}

// The sum of squares of the change.
double update(const AdamwState& state, ConstTensor gradient, const Update& u) {
  const AdamwRates rates = adamw_rates(u.step, u.options);
  const DeviceTensor change({1}, DType::f64), there = device_tensor(std::vector<float>(rates.begin(), rates.end()));
  const DeviceTensor gate = device_tensor(std::vector<float>{u.gradient_scale, u.made ? 1.f : 0.f});
  adamw(change, state, gradient, {there, gate, true}, u.options);
  return host_values<double>(change)[0];
}

TEST(Adamw, FirstStepWorkedByHand) {
  // m = 0.1 * 2 = 0.2, v = 0.05 * 4 = 0.2; both corrections give g = 2 and g^2 = 4: the step is lr * 2 / 2, and the
  // weight decays by 0.001 * 10.
  DeviceTensor w = tensor_of({1}, DType::f32, {10}), m({1}, DType::f32), v({1}, DType::f32), c({1}, DType::bf16);
  DeviceTensor g = tensor_of({1}, DType::f32, {4});
  double squares =
      update({w, m, v, c}, g, {.step = {.lr = 0.5, .decay = 0.001}, .options = {.eps = 0}, .gradient_scale = 0.5f});
  EXPECT_NEAR(to_doubles(w)[0], 10 - 0.5 - 0.01, 1e-6);
  EXPECT_NEAR(to_doubles(m)[0], 0.2, 1e-7);
  EXPECT_NEAR(to_doubles(v)[0], 0.2, 1e-7);
  EXPECT_EQ(to_doubles(c)[0], 9.5);  // 9.49 lies between 9.4375 and 9.5
  EXPECT_NEAR(squares, 0.51 * 0.51, 1e-5);
}

TEST(Adamw, EpsilonStandsOutsideTheRoot) {
  // g = 1e-4, eps = 1e-4: half a step. Inside the root it would be 1e-4 / sqrt(1e-8 + 1e-4), a hundredth.
  DeviceTensor w({1}, DType::f32), m({1}, DType::f32), v({1}, DType::f32), g = tensor_of({1}, DType::f32, {1e-4});
  update({w, m, v, {}}, g, {.step = {.lr = 1}, .options = {.eps = 1e-4}});
  EXPECT_NEAR(to_doubles(w)[0], -0.5, 1e-5);
}

// tests/golden/README.md says how these came about.
TEST(Adamw, EqualsGoldenUpdates) {
  nlohmann::json golden = nlohmann::json::parse(std::ifstream(golden_file("adamw.json")));
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
      update({w, m, v, {}}, g,
             {.step = {.lr = rate,
                       .decay = (one["decay"] == "independent" ? factor : rate) * weight_decay,
                       .updates = int64_t(i) + 1},
              .options = {.beta1 = one["beta1"], .beta2 = one["beta2"], .eps = one["eps"]}});
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
    Update next = typical();
    for (int i = 0; i < 5; ++i, ++next.step.updates) {
      fill_random(arena.gradient, 1000 * round + uint64_t(i));
      Values gradient = to_doubles(arena.gradient), before = to_doubles(arena.master);
      double squares = update(arena.state(), arena.gradient, next);
      for (size_t e = 0; e < expected.size(); ++e)
        expected[e] = reference::adamw(expected[e], double(next.gradient_scale) * gradient[e], next.step, next.options);
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
  update(whole.state(), whole.gradient, typical());
  for (int64_t begin = 0, size = 1; begin < kSize; begin += size, size = size * 3 % 1009) {
    int64_t end = std::min(begin + size, kSize);
    update(sliced.state(begin, end), sliced.gradient.tensor.slice(0, begin, end), typical());
  }
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  update(single.state(), single.gradient, typical());
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
  double with_one = update(one.state(), one.gradient, typical());
  omp_set_num_threads(3);
  double with_three = update(three.state(), three.gradient, typical());
  omp_set_num_threads(threads);
  EXPECT_EQ(with_one, with_three);
}

TEST(Adamw, WorksWithoutAComputeCopyAndOnNothing) {
  Arena with(77, 5), without(77, 5);
  double a = update(with.state(), with.gradient, typical());
  double b = update(without.state(0, 77, false), without.gradient, typical());
  EXPECT_EQ(a, b);
  EXPECT_TRUE(same_bits(with.master, without.master));
  EXPECT_EQ(update(with.state(5, 5), with.gradient.tensor.slice(0, 5, 5), typical()), 0);
}

TEST(Adamw, ZeroGradientAndMomentsOnlyDecay) {
  DeviceTensor w = tensor_of({9}, DType::f32, Values(9, 2.0)), m({9}, DType::f32), v({9}, DType::f32),
               g({9}, DType::f32);
  update({w, m, v, {}}, g, {.step = {.lr = 1, .decay = 0.25}, .options = {}});
  EXPECT_EQ(to_doubles(w), Values(9, 1.5));
}

TEST(Adamw, TouchesNothingWhereTheGateIsShut) {
  Arena arena(5003, 1), before(5003, 1);
  set_element(arena.gradient, 13, NAN);
  Update shut = typical();
  shut.made = false;
  EXPECT_EQ(update(arena.state(), arena.gradient, shut), 0);
  for (auto part : {&Arena::master, &Arena::moment1, &Arena::moment2, &Arena::compute})
    EXPECT_TRUE(same_bits(arena.*part, before.*part));
}

TEST(Adamw, NonFiniteGradientShowsInTheSum) {
  Arena arena(20, 1);
  set_element(arena.gradient, 13, INFINITY);
  EXPECT_TRUE(std::isnan(update(arena.state(), arena.gradient, typical())));
}

TEST(Adamw, ErrorsNameBothValues) {
  Arena arena(8, 1);
  auto message = [&](const AdamwState& state, const Update& u) -> std::string {
    try {
      update(state, arena.gradient, u);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(message(arena.state(0, 5), typical()), ::testing::HasSubstr("[5] for gradient [8]"));
  Update zeroth = typical();
  zeroth.step.updates = 0;
  EXPECT_THAT(message(arena.state(), zeroth), ::testing::HasSubstr("update 0"));
  AdamwState state = arena.state();
  state.compute = arena.master.tensor;
  EXPECT_THAT(message(state, typical()), ::testing::HasSubstr("must be bf16"));
}

}  // namespace
}  // namespace keel::ops
