// Which samples real trainers train on, at every layout that fits the ranks (CASES R47): tensor 1 and 2 x data 1, 2, 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "framework/comm/mpi.h"
#include "framework/data/token_writer.h"
#include "framework/train/trainer.h"
#include "tests/support/folder.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

constexpr int64_t kLength = 8, kBatch = 8, kSteps = 6;  // 48 samples: an epoch of both sources

// Writes down the first token of every row that it is given.
class Log : public keel::testing::ToyModel {
 public:
  explicit Log(const parallel::Mesh& mesh) {
    parameters_.declare({.name = "w", .shape = {1}}).placement = nn::Placement::whole();
    parameters_.allocate({.tensor = mesh.tensor_position(), .data_ranks = mesh.data().size()});
    largest_ = OwnedTensor({1, 1}, DType::f32);
    telemetry_ = {.largest_logit = largest_, .heads = mesh.tensor().size(), .kv_heads = mesh.tensor().size()};
  }
  void refresh() override {}
  void begin_step() override {}
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions&) override {
    for (int64_t i = 0; i < batch.tokens.elements(); i += kLength) rows.push_back(float(batch.tokens.as<int32_t>()[i]));
    const auto counted = double(batch.tokens.elements());
    add(sums, {.loss = counted, .counted = counted, .finite = counted});
  }
  std::vector<float> rows;

 private:
  OwnedTensor largest_;
};

// Every token of sample i is `first` + i.
void write_samples(const std::string& prefix, int32_t first, int64_t samples) {
  std::vector<int32_t> ids(size_t(samples * kLength + 1));
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = first + int32_t(t) / int32_t(kLength);
  data::TokenWriter writer(prefix, 200);
  writer.append(ids);
  writer.end_document();
  writer.finish();
}

TEST(Layouts, EveryLayoutSeesTheSameGlobalBatches) {
  testing::TemporaryFolder folder;
  write_samples(folder / "a", 0, 32);
  write_samples(folder / "b", 100, 16);
  const data::Dataset dataset({{folder / "a", 2}, {folder / "b", 1}}, {.T = kLength, .vocabulary = 200});
  const data::SampleOrder order = dataset.training_order(9);
  std::vector<float> expected;  // of one rank
  for (int64_t g = 0; g < kSteps * kBatch; ++g) expected.push_back(float(order(g).source * 100 + order(g).sample));
  EXPECT_EQ(std::set<float>(expected.begin(), expected.end()).size(), expected.size()) << "a sample came twice";

  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  for (int tensor = 1; tensor <= std::min(world->size(), 2); ++tensor) {
    parallel::Mesh mesh(*world, tensor);
    Log model(mesh);
    const int64_t own = kBatch / mesh.data().size();
    StepBatches batches(dataset, {1, kLength, own}, false);
    Trainer trainer(model, mesh, batches, order,
                    {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0}, .total_steps = kSteps});
    trainer.weights_changed();
    trainer.run();
    ASSERT_EQ(int64_t(model.rows.size()), kSteps * own);
    OwnedTensor mine({kSteps, own}, DType::f32), all({world->size(), kSteps, own}, DType::f32);
    std::copy(model.rows.begin(), model.rows.end(), Tensor(mine).as<float>());
    world->all_gather(all, mine);
    const float* rows = Tensor(all).as<float>();
    for (int rank = 0; rank < world->size(); ++rank)
      for (int64_t step = 0; step < kSteps; ++step)
        for (int64_t row = 0; row < own; ++row)
          ASSERT_EQ(rows[(rank * kSteps + step) * own + row],
                    expected[size_t(step * kBatch + rank / tensor * own + row)])
              << "rank " << rank << ", tensor " << tensor << ", step " << step << ", row " << row;
  }
}

}  // namespace
}  // namespace keel::train
