// Whole training steps of one model, one global batch and one seed over every split of four ranks: losses and norms are
// those of one rank, clipping reaches the limit, and what several ranks hold stays the same bits.
#include <gtest/gtest.h>
#include <omp.h>

#include "framework/parallel/replica_check.h"
#include "tests/models/decoder/decoder_run.h"
#include "tests/support/compare.h"

namespace keel::testing {
namespace {

constexpr int64_t kVocabulary = 40, kLength = 12, kSequences = 8;

constexpr Layout kOne{1, 1, true};
std::vector<Layout> other_layouts() {
  if (!on_cpu()) return {{1, 2, true}, {2, 2, true}, {4, 1, false}};
  return {{1, 2, true}, {1, 4, false}, {2, 1, true}, {2, 2, true}, {2, 2, false}, {4, 1, false}};
}

struct Record : train::Hook {
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    losses.push_back(report.loss);
    norms.push_back(report.gradient_norm);
    return {};
  }
  Values losses, norms;
};

struct Variant {
  const char* name;
  const char* text;
  int64_t steps;
};

// Shared gains (CASES R01), one KV head for all queries (R11), and what full scope exchanges (R03).
const Variant kVariants[] = {
    {"PerHead", "attention: {heads: 4, kv_heads: 2}", 5},
    {"Shared", "attention: {heads: 4, kv_heads: 4, qk_norm: {weight: shared}}", 10},
    {"OneKvHead", "attention: {heads: 4, kv_heads: 1, qk_norm: {weight: shared}}", 20},
    {"FullOneKvHead", "attention: {heads: 4, kv_heads: 1, qk_norm: {scope: full}}", 5},
};

class Layouts : public ::testing::TestWithParam<Variant> {
 protected:
  Layouts() : world(device_world()), dataset(tokens.dataset(kLength)) {}

  struct Run {
    Values losses, norms;
    double applied_norm = 0;  // of the first moments, over 1 - beta1: of one update's clipped gradients
    // Logical; the gradients as applied, from the first moments of one update.
    std::map<std::string, Values> gains, gradients;
  };

  // On as many ranks as the layout has; every group of so many does the same.
  Run run(const Layout& layout, int64_t steps, double clip) {
    const auto ranks = world->split(world->rank() / layout.ranks(), world->rank());
    const int64_t rows = kSequences / layout.data, micro = std::min<int64_t>(rows, 4);
    DecoderRun training(*ranks, dataset, small_decoder(kVocabulary, GetParam().text),
                        {.tensor = layout.tensor,
                         .batch = {micro, kLength, rows / micro},
                         .trainer = {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 3e-3},
                                     .weight_decay = 0.1,
                                     .clip_norm = clip,
                                     .total_steps = steps,
                                     .zero = layout.zero}});
    Record record;
    training.trainer->add(record);
    training.go();
    parallel::require_same_replicas(training.decoder.parameters(), training.mesh, steps);
    return {record.losses, record.norms, applied_norm(training.trainer->optimizer(), training.mesh, layout.zero),
            logical_gains(training.decoder.parameters(), training.mesh),
            logical_gradients(training.decoder.parameters(), training.trainer->optimizer(), training.mesh)};
  }

  static double applied_norm(const optim::Adamw& optimizer, parallel::Mesh& mesh, bool zero) {
    double squares = 0;
    for (size_t s = 0; s < optimizer.spans().size(); ++s)
      if (optimizer.spans()[s].counted) squares += std::pow(norm_of(to_doubles(optimizer.moment1(s))) / 0.1, 2);
    squares = comm::all_reduce_value(mesh.tensor(), squares);
    return std::sqrt(zero ? comm::all_reduce_value(mesh.data(), squares) : squares);
  }

  static std::map<std::string, Values> logical_gradients(nn::ParameterSet& parameters, const optim::Adamw& optimizer,
                                                         parallel::Mesh& mesh) {
    std::map<std::string, Values> gradients;
    for (const nn::Parameter& parameter : parameters.all()) {
      // What this rank updates of its shard; 0 elsewhere, and in `held` 1 where it updates.
      Values local(size_t(parameter.local.elements())), held(local.size());
      for (size_t s = 0; s < optimizer.spans().size(); ++s) {
        const nn::ArenaRange& span = optimizer.spans()[s];
        const Values moments = to_doubles(optimizer.moment1(s));
        parallel::for_each_part(std::span(&span, 1), parameter, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            local[size_t(i)] = moments[size_t(parameter.offset_elements + i - span.begin)] / 0.1;
            held[size_t(i)] = 1;
          }
        });
      }
      Values whole(size_t(parameter.spec.shape.elements())), holders(whole.size());
      nn::for_each_run(parameter, [&](int64_t logical, int64_t at, int64_t count) {
        std::copy_n(local.begin() + at, count, whole.begin() + logical);
        std::copy_n(held.begin() + at, count, holders.begin() + logical);
      });
      for (Values* sums : {&whole, &holders})
        mesh.world().all_reduce(Tensor(sums->data(), {int64_t(sums->size())}, DType::f64));
      for (size_t i = 0; i < whole.size(); ++i) whole[i] /= holders[i];
      gradients[parameter.spec.name] = whole;
    }
    return gradients;
  }

  static std::map<std::string, Values> logical_gains(nn::ParameterSet& parameters, parallel::Mesh& mesh) {
    std::map<std::string, Values> gains;
    for (const nn::Parameter& parameter : parameters.all()) {
      const std::string& name = parameter.spec.name;
      if (!name.ends_with("q_norm.weight") && !name.ends_with("k_norm.weight")) continue;
      Values whole(size_t(parameter.spec.shape.elements()));
      if (parameter.first_replica())
        nn::for_each_run(parameter,
                         [&, values = to_doubles(parameter.compute)](int64_t logical, int64_t local, int64_t count) {
                           std::copy_n(values.begin() + local, count, whole.begin() + logical);
                         });
      mesh.tensor().all_reduce(Tensor(whole.data(), {int64_t(whole.size())}, DType::f64));
      gains[name] = whole;
    }
    return gains;
  }

  std::unique_ptr<comm::Communicator> world;
  const TokenFile tokens{kVocabulary};
  const data::Dataset dataset;
};

TEST_P(Layouts, StepsAreThoseOfOneRank) {  // CASES R01, R11, R67
  const int64_t steps = on_cpu() ? GetParam().steps : 5;
  const Run one = run(kOne, steps, 1);
  ASSERT_LT(one.losses.back(), one.losses.front() - 0.01 * double(steps));
  for (const Layout& layout : other_layouts()) {
    const Run other = run(layout, steps, 1);
    for (size_t i = 0; i < size_t(steps); ++i) {
      EXPECT_NEAR(other.losses[i], one.losses[i], 1e-5) << text_of(layout) << " at step " << i + 1;
      EXPECT_NEAR(other.norms[i], one.norms[i], (i == 0 ? 1e-5 : 1e-4) * one.norms[i]) << text_of(layout);
    }
    for (const auto& [name, gain] : one.gains) {
      const double moved = norm_of(difference(gain, Values(gain.size(), 1.0)));
      EXPECT_GT(moved, 1e-3) << name;
      EXPECT_TRUE(near_by_norm(other.gains.at(name), gain, 0, 1e-3 * moved)) << name << " " << text_of(layout);
    }
  }
}

// Each tensor on its own: one that is small, or whose sum a bucket's border cuts, does not show in the norm of all.
TEST_P(Layouts, EveryGradientIsThatOfOneRank) {  // CASES R66, R67
  const Run one = run(kOne, 1, 0);
  for (const Layout& layout : other_layouts()) {
    const Run other = run(layout, 1, 0);
    ASSERT_EQ(other.gradients.size(), one.gradients.size());
    for (const auto& [name, gradient] : one.gradients) {
      EXPECT_GT(norm_of(gradient), 0) << name;
      const auto near = [&](const Values& values) { return near_by_norm(values, gradient, 1e-5, 1e-9 * one.norms[0]); };
      EXPECT_TRUE(near(other.gradients.at(name))) << name << " " << text_of(layout);
      // One element of typical size that a rank forgot.
      const double typical = norm_of(gradient) / std::sqrt(double(gradient.size()));
      const auto at = std::ranges::find_if(gradient, [&](double x) { return std::abs(x) >= typical; });
      EXPECT_TRUE(fails(near(with_row_scaled(gradient, 1, at - gradient.begin(), 0)))) << name;
    }
  }
}

TEST_P(Layouts, ClippedGradientsHaveTheLimitAsTheirNorm) {  // CASES R66, R67
  const Run free = run(kOne, 1, 0);
  EXPECT_NEAR(free.applied_norm, free.norms[0], 1e-5 * free.norms[0]);
  const double limit = free.norms[0] / 5;
  for (const Layout& layout : other_layouts()) {
    const Run clipped = run(layout, 1, limit);
    EXPECT_NEAR(clipped.norms[0], free.norms[0], 1e-5 * free.norms[0]) << text_of(layout);
    EXPECT_NEAR(clipped.applied_norm, limit, 1e-5 * limit) << text_of(layout);
  }
}

// Launchers may leave ranks other numbers of cores. Enough rows that two threads share the sums of gains and biases.
TEST(Replicas, AreTheSameBitsWhateverThreadsTheirRanksHave) {
  if (!on_cpu()) GTEST_SKIP() << "sums of the CPU's threads";
  constexpr int64_t kRows = 100, kSteps = 3;
  const auto world = device_world();
  const auto ranks = world->split(world->rank() / 2, world->rank());
  const TokenFile tokens(kVocabulary);
  const data::Dataset dataset = tokens.dataset(kLength);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1 + ranks->rank());
  for (const char* text :
       {"tie_embeddings: true, norm: {kind: layer, placement: sandwich}, "
        "positions: {learned: true, max_positions: 12}, mlp: {kind: gelu, bias: true}, "
        "attention: {heads: 4, kv_heads: 1, bias: {qkv: true, output: true}, qk_norm: {scope: full}}",
        "attention: {heads: 4, kv_heads: 4, qk_norm: {weight: shared}, logit_scale: {kind: per_layer}}"}) {
    DecoderRun training(*ranks, dataset, small_decoder(kVocabulary, text),
                        {.tensor = 2,
                         .batch = {kRows, kLength, 1},
                         .trainer = {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 3e-3},
                                     .weight_decay = 0.1,
                                     .clip_norm = 1,
                                     .total_steps = kSteps}});
    training.go();
    EXPECT_NO_THROW(parallel::require_same_replicas(training.decoder.parameters(), training.mesh, kSteps)) << text;
  }
  omp_set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Variants, Layouts, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace keel::testing
