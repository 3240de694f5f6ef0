// What the loop adds up over ranks and micro-steps: the gradient norm counts each logical element once, clipping brings
// it to the limit, and every counted token of the global batch weighs the same. On 4 ranks the mesh is tensor 2 x
// data 2.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/comm/mpi.h"
#include "framework/data/token_writer.h"
#include "framework/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

// The loss of a counted token is its id, and the gradient of that is given per parameter and element, times the id.
class Given : public keel::testing::ToyModel {
 public:
  Given(const parallel::Mesh& mesh, nn::Placement of_replicated) {
    auto declare = [&](const char* name, int64_t size, nn::Placement placement) {
      parameters_.declare({.name = name, .shape = {size}}).placement = placement;
    };
    declare("sharded", 4, nn::Placement::sharded(0));
    declare("replicated", 1, of_replicated);
    parameters_.allocate({.tensor = mesh.tensor_position(), .data_ranks = mesh.data().size()});
    parts_ = of_replicated == nn::Placement::partial() ? mesh.tensor().size() : 1;
    largest_ = OwnedTensor({1, 1}, DType::f32);
    telemetry_ = {.largest_logit = largest_, .heads = mesh.tensor().size(), .kv_heads = mesh.tensor().size()};
  }

  // 3 and 4 lie on different ranks where there are several, 12 on all.
  static constexpr float kSharded[] = {3, 0, 4, 0};
  static constexpr float kReplicated = 12;

  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override {
    const float factor = *options.factor.as<float>();
    for (int64_t t = 0; t < batch.targets.elements(); ++t) {
      if (batch.targets.as<int32_t>()[t] < 0) continue;
      const int32_t id = batch.tokens.as<int32_t>()[t];
      add(sums, {.loss = double(id), .counted = 1, .finite = 1});
      nn::Parameter& sharded = parameters_.at("sharded");
      for (int64_t i = 0; i < sharded.local.elements(); ++i)
        sharded.gradient.as<float>()[i] += factor * float(id) * kSharded[sharded.shard_offset() + i];
      parameters_.at("replicated").gradient.as<float>()[0] += factor * float(id) * kReplicated / float(parts_);
    }
  }

 private:
  int parts_ = 1;
  OwnedTensor largest_;
};

struct Keep : Hook {
  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override {
    last = report;
    return {};
  }
  StepReport last;
};

struct Weighting {
  const char* name;
  nn::Placement replicated;
  bool zero;
  int64_t micro_sequences;
};

class WeightingTest : public ::testing::TestWithParam<Weighting> {
 protected:
  WeightingTest()
      : world(comm::make_mpi_communicator(MPI_COMM_WORLD)),
        mesh(*world, world->size() == 4 ? 2 : 1),
        model(mesh, GetParam().replicated) {}

  // Two rows of three tokens, with those documents, make every global batch.
  void run_one_step(const std::vector<std::vector<int32_t>>& documents, int64_t sequences, double clip) {
    data::TokenWriter writer(folder / "tokens", 16);
    for (const auto& document : documents) {
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    const data::Dataset dataset({{folder / "tokens"}}, {.T = 3, .vocabulary = 16, .document_mask = true});
    const data::SampleOrder order = dataset.training_order(1);
    const int64_t rows = sequences / mesh.data().size(), micro = std::min(rows, GetParam().micro_sequences);
    StepBatches batches(dataset, {micro, 3, rows / micro}, true);
    Trainer trainer(model, mesh, batches, order,
                    {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.1, .total_steps = 1},
                     .clip_norm = clip,
                     .total_steps = 1,
                     .zero = GetParam().zero});
    Keep keep;
    trainer.add(keep);
    trainer.weights_changed();
    trainer.run();
    report = keep.last;
    // After one update the first moment is (1 - beta1) of the gradient that was applied.
    applied.clear();
    const optim::Adamw& optimizer = trainer.optimizer();
    for (size_t s = 0; s < optimizer.spans().size(); ++s)
      for (int64_t i = 0; i < optimizer.spans()[s].size(); ++i)
        applied.push_back(optimizer.moment1(s).as<float>()[i] / 0.1);
  }

  // Every element that this rank updates, times `scale`; padding is 0.
  void expect_applied(double scale) {
    const nn::ArenaRange all{0, 0, model.parameters().arenas()[0].elements};
    std::vector<double> expected(size_t(all.size()));
    const nn::Parameter& sharded = model.parameters().at("sharded");
    for (int64_t i = 0; i < sharded.local.elements(); ++i)
      expected[size_t(sharded.offset_elements + i)] = scale * Given::kSharded[sharded.shard_offset() + i];
    expected[size_t(model.parameters().at("replicated").offset_elements)] = scale * Given::kReplicated;
    const parallel::DataParallel reducer(model.parameters(), mesh, GetParam().zero);
    std::vector<double> own;
    for (const nn::ArenaRange& span : reducer.update_spans())
      own.insert(own.end(), expected.begin() + span.begin, expected.begin() + span.end);
    ASSERT_EQ(applied.size(), own.size());
    for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(applied[i], own[i], 1e-5 * std::abs(own[i])) << i;
  }

  testing::TemporaryFolder folder;
  std::unique_ptr<comm::Communicator> world;
  parallel::Mesh mesh;
  Given model;
  StepReport report;
  std::vector<double> applied;
};

// CASES R66, R67: the norm of (3, 4, 12) is 13, whoever holds them; clipped to 1.3 every gradient is a tenth.
TEST_P(WeightingTest, NormCountsOnceAndClippingReachesTheLimit) {
  const std::vector<std::vector<int32_t>> ones = {std::vector<int32_t>(13, 1)};
  for (auto [clip, scale] : {std::pair{1.3, 0.1}, {13.1, 1.0}, {0.0, 1.0}}) {
    run_one_step(ones, 4, clip);
    EXPECT_NEAR(report.loss, 1, 1e-6);
    EXPECT_NEAR(report.gradient_norm, 13, 1e-5 * 13) << "before clipping";
    expect_applied(scale);
  }
}

// CASES R68: one row with one counted token of loss 2, one with three of loss 4: 3.5, and not the mean of means 3.
TEST_P(WeightingTest, EveryCountedTokenWeighsTheSame) {
  // Row 1 is tokens 2 2 9, its targets 2 and two beginnings of documents; row 2 is tokens 4 4 4, its targets 4 4 4.
  run_one_step({{2, 2}, {9}, {4, 4, 4, 4}}, 2, 0);
  EXPECT_EQ(report.counted_tokens, 4);
  EXPECT_NEAR(report.loss, 3.5, 1e-6);
  EXPECT_NEAR(report.gradient_norm, 3.5 * 13, 1e-5 * 3.5 * 13);
  expect_applied(3.5);
}

INSTANTIATE_TEST_SUITE_P(Ways, WeightingTest,
                         ::testing::Values(Weighting{"WholeOneBatch", nn::Placement::whole(), true, 2},
                                           Weighting{"WholeMicroSteps", nn::Placement::whole(), false, 1},
                                           Weighting{"PartialOneBatch", nn::Placement::partial(), false, 2},
                                           Weighting{"PartialMicroSteps", nn::Placement::partial(), true, 1}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace keel::train
