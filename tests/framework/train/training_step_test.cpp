// A step without a loop around it: the order of its phases, and what it reports.
#include "framework/train/training_step.h"

#include <gtest/gtest.h>

#include "framework/comm/mpi.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

// The loss of a token is its id, and so is its gradient by each element of w [4].
class Toy : public keel::testing::ToyModel {
 public:
  explicit Toy(const parallel::Mesh& mesh) {
    w_ = &parameters_.declare({.name = "w", .shape = {4}, .init = {}, .decayed = true});
    parameters_.allocate({.data_ranks = mesh.data().size()});
    parameters_.initialise(1);
    largest_ = OwnedTensor({1, 1}, DType::f32);
    telemetry_ = {.largest_logit = largest_, .heads = 1, .kv_heads = 1};
  }

  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override {
    for (int64_t t = 0; t < batch.tokens.elements(); ++t) {
      const auto id = float(batch.tokens.as<int32_t>()[t]);
      add(sums, {.loss = id, .counted = 1, .finite = 1});
      for (int64_t i = 0; i < 4; ++i) w_->gradient.as<float>()[i] += gradient * *options.factor.as<float>() * id;
    }
    options.gradients_complete(1);
    options.gradients_complete(0);
  }
  float gradient = 1;  // times a token's id
  float weight() const { return w_->compute.as<float>()[0]; }

 private:
  nn::Parameter* w_;
  OwnedTensor largest_;
};

TEST(TrainingStep, EndsEachPhaseAndCountsEveryMicroStep) {
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  parallel::Mesh mesh(*world, 1);
  Toy model(mesh);
  TrainingStep training(model, mesh, {.micro_sequences = 1, .length = 2, .micro_steps = 2}, {});
  training.weights_changed(0);
  const OwnedTensor tokens({1, 2}, DType::i32);
  const auto batch = [&](int64_t micro_step) {
    for (int64_t t = 0; t < 2; ++t) tokens.tensor.as<int32_t>()[t] = int32_t(1 + 2 * micro_step + t);
    return nn::TokenBatch{tokens, tokens, tokens, {}};
  };
  std::vector<Phase> phases;
  const auto ended = [&](Phase phase) { phases.push_back(phase); };
  TrainingStep::Inputs inputs{.step = 1, .lr = 0.5, .limits = {}, .counted_tokens = 4 * world->size()};
  StepReport report;
  for (bool open : {true, false}) {
    const float before = model.weight();
    if (!open) inputs = {2, report.updates, 0.5, {.gradient_norm = 4.9}, inputs.counted_tokens};
    phases.clear();
    training.run(inputs, batch, {ended});
    training.wait();
    training.read(report);
    EXPECT_EQ(phases, (std::vector{Phase::forward, Phase::backward, Phase::forward, Phase::backward, Phase::reduction,
                                   Phase::update}));
    EXPECT_DOUBLE_EQ(report.loss, 2.5);          // of tokens 1 to 4
    EXPECT_NEAR(report.gradient_norm, 5, 1e-5);  // of four weights
    EXPECT_EQ(report.updated, open);
    EXPECT_EQ(report.updates, 1);
    EXPECT_NEAR(before - model.weight(), open ? 0.5 : 0, 1e-5);  // Adam's first step is the rate
    EXPECT_NEAR(report.update_norm, open ? 1 : 0, 1e-5);
  }
}

// Without a gradient the decay is all that moves a weight: by the rate, or by its share of the schedule's peak.
TEST(TrainingStep, DecaysByTheRateOrByItsShareOfThePeak) {
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  parallel::Mesh mesh(*world, 1);
  const OwnedTensor tokens({1, 2}, DType::i32);
  zero(tokens);
  const auto batch = [&](int64_t) { return nn::TokenBatch{tokens, tokens, tokens, {}}; };
  for (bool independent : {false, true}) {
    Toy model(mesh);
    model.gradient = 0;
    std::fill_n(model.parameters().all()[0].master.as<float>(), 4, 2.f);
    TrainingStep training(
        model, mesh, {.micro_sequences = 1, .length = 2, .micro_steps = 1},
        {.schedule = {.peak = 0.25}, .weight_decay = 0.25, .independent_decay = independent, .zero = false});
    training.weights_changed(0);
    training.run({.step = 1, .lr = 0.5, .limits = {}, .counted_tokens = 2 * world->size()}, batch, {[](Phase) {}});
    training.wait();
    EXPECT_EQ(model.weight(), independent ? 2.f - 2.f * 0.25f * 2 : 2.f - 2.f * 0.25f * 0.5f);
  }
}

}  // namespace
}  // namespace keel::train
