// Training with stochastically rounded compute copies: one function of the master weights and the updates made,
// whatever shards the optimizer, splits the model, or stopped the run in between.
#include <gtest/gtest.h>

#include "framework/ops/elementwise.h"
#include "tests/models/decoder/decoder_run.h"

namespace keel::testing {
namespace {

constexpr int64_t kVocabulary = 40, kLength = 12, kSteps = 8, kSkipped = 3;
constexpr uint64_t kSeed = 5;

struct Record : train::Hook {
  void limit(train::StepLimits& limits) const override {
    if (first + int64_t(losses.size()) == kSkipped) limits.gradient_norm = 0;
  }
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    losses.push_back(report.loss);
    if (report.step == last) return {train::Action::stop_saved, "as after a kill"};
    return {};
  }
  std::vector<double> losses;
  int64_t first = 1, last = 0;
};

std::vector<float> as_floats(const Tensor& x) {
  const DeviceTensor wide(x.shape(), DType::f32);
  ops::convert(wide, x);
  return host_values(wide);
}

class Training {
 public:
  Training(comm::Communicator& world, const data::Dataset& dataset, bool zero, std::optional<uint64_t> seed)
      : run_(world, dataset, small_decoder(kVocabulary, "attention: {heads: 4, kv_heads: 2}"),
             {.batch = {2, kLength, 4 / world.size()},
              .activation = DType::bf16,
              .trainer = {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 3e-3},
                          .clip_norm = 1,
                          .total_steps = kSteps,
                          .zero = zero,
                          .rounding_seed = seed}}) {
    trainer.add(record);
  }

  void go(int64_t last = 0) {
    record.last = last;
    run_.go();
  }
  // As from a checkpoint.
  void go_on_from(Training& other) {
    for (size_t a = 0; a < decoder.parameters().arenas().size(); ++a)
      copy(decoder.parameters().arenas()[a].master, other.decoder.parameters().arenas()[a].master);
    for (size_t span = 0; span < trainer.optimizer().spans().size(); ++span) {
      copy(trainer.optimizer().moment1(span), other.trainer.optimizer().moment1(span));
      copy(trainer.optimizer().moment2(span), other.trainer.optimizer().moment2(span));
    }
    trainer.progress() = other.trainer.progress();
    record.first = trainer.progress().step + 1;
    go();
  }
  std::vector<std::vector<float>> copies() {
    std::vector<std::vector<float>> values;
    for (const nn::ParameterArena& arena : decoder.parameters().arenas())
      if (arena.compute_dtype == DType::bf16) values.push_back(as_floats(arena.compute));
    return values;
  }

 private:
  DecoderRun<> run_;

 public:
  models::Decoder& decoder = run_.decoder;
  train::Trainer& trainer = *run_.trainer;
  Record record;
};

class Rounding : public ::testing::Test {
 protected:
  Rounding() : world(device_world()), dataset(tokens.dataset(kLength)) {}

  std::unique_ptr<comm::Communicator> world;
  const TokenFile tokens{kVocabulary};
  const data::Dataset dataset;
};

TEST_F(Rounding, ShardedOptimizerIsTheSameBits) {
  Training sharded(*world, dataset, true, kSeed), whole(*world, dataset, false, kSeed),
      nearest(*world, dataset, false, {});
  for (Training* run : {&sharded, &whole, &nearest}) run->go();
  EXPECT_EQ(whole.trainer.progress().updates, kSteps - 1);
  EXPECT_EQ(sharded.record.losses, whole.record.losses);
  EXPECT_EQ(sharded.copies(), whole.copies());
  EXPECT_NE(nearest.copies(), whole.copies());
  EXPECT_NE(nearest.record.losses, whole.record.losses);
}

TEST_F(Rounding, ResumedIsUninterrupted) {
  Training whole(*world, dataset, true, kSeed);
  whole.go();
  for (int64_t last : {kSkipped - 1, kSkipped, kSkipped + 2}) {
    Training begun(*world, dataset, true, kSeed), resumed(*world, dataset, true, kSeed);
    begun.go(last);
    resumed.go_on_from(begun);
    EXPECT_EQ(std::vector<double>(whole.record.losses.begin() + last, whole.record.losses.end()),
              resumed.record.losses);
    EXPECT_EQ(whole.copies(), resumed.copies()) << "stopped after step " << last;
  }
}

// Shards of a matrix along either dim, of 1, 2 and 4 tensor ranks.
TEST_F(Rounding, ShardsHaveTheBitsOfTheWhole) {
  const DeviceTensor updates({1}, DType::i64), gate({2}, DType::f32);
  for (int dim : {0, 1}) {
    std::vector<float> whole;
    for (int ranks : {1, 2, 4}) {
      std::vector<float> joined(16 * 24);
      for (int rank = 0; rank < ranks; ++rank) {
        nn::ParameterSet parameters;
        nn::Parameter& weight = parameters.declare(
            {.name = "w", .shape = {16, 24}, .init = {nn::Init::Kind::normal, 0.1}, .decayed = true, .product = true});
        weight.placement = nn::Placement::sharded(dim);
        parameters.allocate({.device = test_device(), .activation = DType::bf16, .tensor = {rank, ranks}});
        parameters.round_stochastically(kSeed, updates, gate);
        parameters.initialise(1);
        const std::vector<float> shard = as_floats(weight.compute);
        nn::for_each_run(weight, [&](int64_t logical, int64_t local, int64_t count) {
          std::copy_n(shard.begin() + local, count, joined.begin() + logical);
        });
      }
      if (ranks == 1) whole = joined;
      EXPECT_EQ(joined, whole) << ranks << " ranks along dim " << dim;
    }
  }
}

}  // namespace
}  // namespace keel::testing
