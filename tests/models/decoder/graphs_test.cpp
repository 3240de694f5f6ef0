// Steps that are replayed as graphs leave the same bits as steps that are started op by op: with telemetry steps, a
// skipped one, QK-clip, and evaluations in between.
#include <gtest/gtest.h>

#include "framework/train/evaluation.h"
#include "tests/models/decoder/decoder_run.h"

namespace keel::testing {
namespace {

constexpr int64_t kVocabulary = 40, kLength = 12, kSteps = 12, kSkipped = 8, kMicroSteps = 2;

struct CountedDecoder : models::Decoder {
  using Decoder::Decoder;
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override {
    ++passes;
    Decoder::forward_backward(sums, batch, options);
  }
  int passes = 0;
};

// What every step reported, and a held-out loss after every third.
struct Record : train::Hook {
  Record(const data::Dataset& dataset, const train::BatchSizes& sizes, nn::Model& model, parallel::Mesh& mesh)
      : evaluation(dataset, sizes, true, 8, test_device()), model(model), mesh(mesh) {}

  void limit(train::StepLimits& limits) const override {
    if (steps + 1 == kSkipped) limits.gradient_norm = 0;
  }
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    ++steps;
    numbers.push_back({report.loss, report.z_loss, report.gradient_norm, report.update_norm, double(report.updated)});
    for (const auto& part : {report.largest_logit, report.entropy, report.q_rms, report.k_rms})
      numbers.emplace_back(part.begin(), part.end());
    if (steps % 3 == 0) numbers.push_back({evaluation.run(model, mesh)->loss});
    return {};
  }

  train::Evaluation evaluation;
  nn::Model& model;
  parallel::Mesh& mesh;
  int64_t steps = 0;
  std::vector<std::vector<double>> numbers;
};

struct Left {
  std::vector<std::vector<double>> numbers;
  std::vector<std::vector<float>> weights, moments;
  int passes = 0;
};

class Graphs : public ::testing::TestWithParam<std::tuple<DType, const char*>> {
 protected:
  Graphs() : world(device_world()), dataset(tokens.dataset(kLength)) {}

  Left run(bool graphs) {
    const auto [activation, block] = GetParam();
    const train::BatchSizes sizes{2, kLength, kMicroSteps};
    DecoderRun<CountedDecoder> training(
        *world, dataset, small_decoder(kVocabulary, block),
        {.batch = sizes,
         .activation = activation,
         .trainer = {.schedule = {.peak = 3e-3, .warmup_steps = 4, .total_steps = kSteps},
                     .weight_decay = 0.1,
                     .clip_norm = 1,
                     .qk_clip_tau = 0.05,
                     .loss = {.z_loss = 1e-3},
                     .total_steps = kSteps,
                     .telemetry_every = 5,
                     .graphs = graphs}});
    CountedDecoder& decoder = training.decoder;
    train::Trainer& trainer = *training.trainer;
    Record record(dataset, sizes, decoder, training.mesh);
    trainer.add(record);
    training.go();
    EXPECT_EQ(trainer.progress().updates, kSteps - 1);
    Left left{record.numbers, {}, {}, decoder.passes};
    for (const nn::ParameterArena& arena : decoder.parameters().arenas())
      left.weights.push_back(host_values(arena.master));
    for (size_t span = 0; span < trainer.optimizer().spans().size(); ++span)
      for (const Tensor& moment : {trainer.optimizer().moment1(span), trainer.optimizer().moment2(span)})
        left.moments.push_back(host_values(moment));
    return left;
  }

  std::unique_ptr<comm::Communicator> world;
  const TokenFile tokens{kVocabulary};
  const data::Dataset dataset;
};

TEST_P(Graphs, ChangeNoBit) {
  const Left plain = run(false), replayed = run(true);
  // Telemetry steps are 1, 5 and 10; the skipped one is looked at once more.
  EXPECT_EQ(plain.passes, (kSteps + 1) * kMicroSteps);
  const bool replays = test_device().kind == DeviceKind::cuda;
  EXPECT_EQ(replayed.passes, replays ? (2 + 2 + 1) * kMicroSteps : plain.passes) << "each kind of step twice";
  EXPECT_EQ(replayed.numbers, plain.numbers);
  EXPECT_EQ(replayed.weights, plain.weights);
  EXPECT_EQ(replayed.moments, plain.moments);
}

INSTANTIATE_TEST_SUITE_P(Variants, Graphs,
                         ::testing::Values(std::tuple(DType::f32, "attention: {heads: 4, kv_heads: 2}"),
                                           std::tuple(DType::bf16,
                                                      "preset: olmo2, recompute: attention, "
                                                      "attention: {heads: 4, kv_heads: 4}")),
                         [](const auto& info) { return std::string(name_of(std::get<0>(info.param))); });

}  // namespace
}  // namespace keel::testing
