// The loop with a model of two parameters: one verdict for all ranks whichever of them sees the fault, and what a
// skipped step leaves alone. On 4 ranks the mesh is tensor 2 x data 2.
#include "framework/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "framework/comm/mpi.h"
#include "framework/data/token_writer.h"
#include "framework/train/lost_hook.h"
#include "framework/train/replica_hook.h"
#include "framework/train/run_files_hook.h"
#include "framework/train/stability_hook.h"
#include "framework/train/time_limit_hook.h"
#include "tests/support/folder.h"
#include "tests/support/toy_model.h"

namespace keel::train {
namespace {

enum class Fault { none, loss, gradient_nan, gradient_infinite };

// loss per token = |w - i|^2 / 2 over the logical w [8], cut over the tensor ranks, and |g - 1|^2 / 2 over a gain [3]
// whose gradient the tensor ranks share.
class Toy : public keel::testing::ToyModel {
 public:
  Toy(const parallel::Mesh& mesh) : ranks_(mesh.tensor().size()) {
    w_ = &parameters_.declare({.name = "w", .shape = {8}, .init = {}, .decayed = true, .product = true});
    g_ = &parameters_.declare({.name = "g", .shape = {3}, .init = {}});
    w_->placement = nn::Placement::sharded(0);
    g_->placement = nn::Placement::partial();
    parameters_.allocate({.tensor = mesh.tensor_position(), .data_ranks = mesh.data().size()});
    parameters_.initialise(1);
    largest_ = OwnedTensor({1, 2 / ranks_}, DType::f32);
    telemetry_ = {.largest_logit = largest_, .heads = 2, .kv_heads = 2};
  }

  void refresh() override {}
  void begin_step() override { ++step_; }
  void forward_backward(Tensor sums, const nn::TokenBatch& batch, const nn::StepOptions& options) override {
    const int32_t* targets = batch.targets.as<int32_t>();
    const auto counted =
        double(std::count_if(targets, targets + batch.targets.elements(), [](int32_t target) { return target >= 0; }));
    const float share = *options.factor.as<float>() * float(counted);
    for (int64_t i = 0; i < w_->local.elements(); ++i)
      w_->gradient.as<float>()[i] += share * (w_->master.as<float>()[i] - float(w_->shard_offset() + i));
    for (int64_t i = 0; i < 3; ++i)
      g_->gradient.as<float>()[i] += share * (g_->master.as<float>()[i] - 1) / float(ranks_);
    const bool faulty = step_ >= first_fault && step_ <= last_fault;
    if (faulty && fault == Fault::loss)
      add(sums, {.loss = std::nan(""), .counted = counted, .finite = counted - 1});
    else
      add(sums, {.loss = counted, .counted = counted, .finite = counted});
    if (!faulty) return;
    if (fault == Fault::gradient_nan) w_->gradient.as<float>()[1] = std::numeric_limits<float>::quiet_NaN();
    if (fault == Fault::gradient_infinite) g_->gradient.as<float>()[1] = std::numeric_limits<float>::infinity();
  }

  Fault fault = Fault::none;  // of this rank, in these steps
  int64_t first_fault = 5, last_fault = 5;

 private:
  int ranks_;
  nn::Parameter *w_, *g_;
  OwnedTensor largest_;
  int64_t step_ = 0;
};

// Both masters of this rank after every step, and what was reported.
struct Recorder : Hook {
  explicit Recorder(nn::Model& model) : model(model) {}
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress&) override {
    std::vector<float> now;
    for (const nn::Parameter& parameter : model.parameters().all())
      now.insert(now.end(), parameter.compute.as<float>(), parameter.compute.as<float>() + parameter.local.elements());
    weights.push_back(now);
    reports.push_back(report);
    actions.push_back(verdict.action);
    return {};
  }
  nn::Model& model;
  std::vector<std::vector<float>> weights;
  std::vector<StepReport> reports;
  std::vector<Action> actions;
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest()
      : world(comm::make_mpi_communicator(MPI_COMM_WORLD)), mesh(*world, world->size() == 4 ? 2 : 1), model(mesh) {
    data::TokenWriter writer(folder / "tokens", 16);
    std::vector<int32_t> ids(400);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * 7 % 16);
    writer.append(ids);
    writer.end_document();
    writer.finish();
    dataset.emplace(std::vector<data::Source>{{folder / "tokens"}}, data::DatasetOptions{.T = 8, .vocabulary = 16});
  }

  Ending run(int64_t steps, int64_t max_skips, bool zero) {
    const bool speaker = world->rank() == 0;
    const data::SampleOrder order = dataset->training_order(1);
    StepBatches batches(*dataset, {1, 8, 4 / mesh.data().size()}, document_mask);
    Trainer trainer(model, mesh, batches, order,
                    {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.05, .total_steps = steps},
                     .total_steps = steps,
                     .zero = zero});
    RunFilesHook files(io, {.directory = folder / "", .speaker = speaker, .tensorboard = false, .throughput = {}});
    const Note note = [&](const std::string& kind, const io::Json& fields) { files.note(kind, fields); };
    StabilityHook stability({.max_skips = max_skips, .spike = {.enabled = false}, .lower_lr = {.times = 0}}, note);
    recorder.emplace(model);
    for (Hook* hook : std::initializer_list<Hook*>{&stability, &files, &*recorder}) trainer.add(*hook);
    trainer.weights_changed();
    const Ending ending = trainer.run();
    progress = trainer.progress();
    return ending;
  }

  int skip_events() {
    std::ifstream file(folder / "events.jsonl");
    int count = 0;
    for (std::string line; std::getline(file, line);) count += line.find(R"("event":"skip")") != std::string::npos;
    return count;
  }

  testing::TemporaryFolder folder;
  std::unique_ptr<comm::Communicator> world;
  parallel::Mesh mesh;
  Toy model;
  std::optional<data::Dataset> dataset;
  bool document_mask = false;
  io::IoThread io;
  std::optional<Recorder> recorder;
  Progress progress;
};

class FaultOfOneRank : public TrainerTest, public ::testing::WithParamInterface<std::tuple<Fault, bool>> {};

TEST_P(FaultOfOneRank, IsSkippedByAll) {  // CASES R23
  const auto [fault, zero] = GetParam();
  if (world->rank() == world->size() - 1) model.fault = fault;
  const Ending ending = run(8, 3, zero);
  EXPECT_EQ(ending.outcome, Outcome::done);
  EXPECT_EQ(progress.step, 8);
  EXPECT_EQ(progress.updates, 7);
  for (size_t i = 0; i < 8; ++i) {
    const bool skipped = i == 4;
    EXPECT_EQ(recorder->actions[i], skipped ? Action::skip : Action::proceed) << i;
    EXPECT_EQ(recorder->reports[i].update_norm == 0, skipped) << i;
    if (i == 0) continue;
    EXPECT_EQ(recorder->weights[i] == recorder->weights[i - 1], skipped) << i;
    EXPECT_EQ(recorder->reports[i].first_sample, recorder->reports[i - 1].end_sample) << i;
  }
  const std::string where = fault == Fault::loss           ? fmt::format("on rank {}", world->size() - 1)
                            : fault == Fault::gradient_nan ? "in w"
                                                           : "in g";
  EXPECT_EQ(recorder->reports[4].not_finite, where);
  EXPECT_EQ(recorder->reports[5].not_finite, "");
  // Every data rank holds the same weights.
  for (float weight : recorder->weights.back())
    EXPECT_EQ(comm::all_reduce_value(mesh.data(), double(weight), comm::Reduction::max), double(weight));
  EXPECT_EQ(skip_events(), world->rank() == 0 ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultOfOneRank,
                         ::testing::Combine(::testing::Values(Fault::loss, Fault::gradient_nan,
                                                              Fault::gradient_infinite),
                                            ::testing::Bool()));

// Documents of one token have no targets: a run that learns nothing ends, and does not pass for one that is done.
TEST_F(TrainerTest, BatchesInWhichNothingCountsAreTrouble) {
  data::TokenWriter writer(folder / "single", 16);
  for (int32_t i = 0; i < 400; ++i) {
    writer.append(std::vector<int32_t>{i % 16});
    writer.end_document();
  }
  writer.finish();
  dataset.emplace(std::vector<data::Source>{{folder / "single"}},
                  data::DatasetOptions{.T = 8, .vocabulary = 16, .document_mask = true});
  document_mask = true;
  const Ending ending = run(8, 3, true);
  EXPECT_EQ(recorder->reports[0].counted_tokens, 0);
  EXPECT_EQ(ending.outcome, Outcome::unstable);
  EXPECT_NE(ending.reason.find("no token of the batch counts"), std::string::npos) << ending.reason;
  EXPECT_EQ(progress.step, 4);
  EXPECT_EQ(progress.updates, 0);
  EXPECT_EQ(skip_events(), world->rank() == 0 ? 3 : 0);
}

// Counted once, whatever ranks share: w is cut over the tensor axis, g is everybody's, and data ranks have the same.
TEST_F(TrainerTest, TheUpdateNormIsOfTheLogicalWeights) {
  for (bool zero : {true, false}) {
    run(6, 3, zero);
    for (size_t step = 1; step < 6; ++step) {
      const std::vector<float>&now = recorder->weights[step], &before = recorder->weights[step - 1];
      double w = 0, g = 0;
      for (size_t i = 0; i < now.size(); ++i) (i < now.size() - 3 ? w : g) += std::pow(double(now[i]) - before[i], 2);
      const double norm = std::sqrt(comm::all_reduce_value(mesh.tensor(), w) + g);
      EXPECT_NEAR(recorder->reports[step].update_norm, norm, 1e-5 * norm) << step << (zero ? " ZeRO" : "");
    }
  }
}

TEST_F(TrainerTest, ManyFaultsInARowStopTheRun) {  // CASES R25
  if (world->rank() == world->size() - 1) model.fault = Fault::gradient_nan;
  model.first_fault = 7;
  model.last_fault = 100;
  const Ending ending = run(40, 3, true);
  EXPECT_EQ(ending.outcome, Outcome::unstable);
  EXPECT_EQ(progress.step, 10);
  EXPECT_EQ(progress.updates, 6);
  EXPECT_EQ(recorder->weights.back(), recorder->weights[5]);
  EXPECT_NE(ending.reason.find("stability.max_skips"), std::string::npos) << ending.reason;
}

TEST_F(TrainerTest, AFaultNowAndThenDoesNot) {
  model.fault = Fault::loss;
  model.first_fault = 3;
  model.last_fault = 5;
  EXPECT_EQ(run(8, 3, true).outcome, Outcome::done);
  EXPECT_EQ(progress.updates, 5);
}

// Adds to one weight that data ranks hold alike, on the last rank after one step.
struct Disturbance : Hook {
  Disturbance(nn::Model& model, bool here) : gain(model.parameters().at("g")), here(here) {}
  Verdict after_step(const StepReport& report, const Verdict&, const Progress&) override {
    seen = report.step;
    if (here && report.step == 4) gain.compute.as<float>()[1] += 1;
    return {};
  }
  nn::Parameter& gain;
  bool here;
  int64_t seen = 0;
};

TEST_F(TrainerTest, ReplicasThatDifferEndTheRunAtTheNextLook) {  // CASES R65
  const data::SampleOrder order = dataset->training_order(1);
  StepBatches batches(*dataset, {1, 8, 4 / mesh.data().size()}, false);
  Trainer trainer(model, mesh, batches, order,
                  {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.05}, .total_steps = 9, .zero = false});
  Disturbance disturbance(model, world->rank() == world->size() - 1);
  ReplicaHook replicas(model.parameters(), mesh, 3);
  trainer.add(disturbance);
  trainer.add(replicas);
  trainer.weights_changed();
  std::string message;
  try {
    trainer.run();
  } catch (const Error& error) {
    message = error.what();
  }
  if (world->size() == 1) {
    EXPECT_EQ(message, "");
    EXPECT_EQ(disturbance.seen, 9);
    return;
  }
  EXPECT_EQ(disturbance.seen, 6) << message;
  EXPECT_NE(message.find("step 6"), std::string::npos) << message;
  EXPECT_NE(message.find("'g'"), std::string::npos) << message;
}

// A save must not wait for it: one rank that is asked to end is enough.
TEST_F(TrainerTest, AnEvaluationEndsWhereAnyRankIsToEnd) {
  Evaluation evaluation(*dataset, {1, 8, 1}, false, 0);
  EXPECT_TRUE(evaluation.run(model, mesh));
  EXPECT_TRUE(evaluation.run(model, mesh, [] { return false; }));
  const bool last = world->rank() == world->size() - 1;
  EXPECT_FALSE(evaluation.run(model, mesh, [&] { return last; }));
}

// A limit that passes, or a signal that comes, in the last step ends nothing.
TEST(TimeLimitHook, EndsARunBeforeItsLastStepOnly) {
  TimeLimitHook hook(
      {}, 0, 10, [] { return true; }, [] {});
  StepReport report;
  report.stop_requested = true;
  for (int64_t step : {9, 10}) {
    report.step = step;
    EXPECT_EQ(hook.after_step(report, {}, {}).action, step == 10 ? Action::proceed : Action::stop_saved);
  }
}

// The run ends at a step whose evaluation was left out, and makes it up where it goes on. Where there is nothing to
// save it is not left out.
TEST_F(TrainerTest, AnEvaluationThatWasLeftOutIsMadeUp) {
  RunFilesHook files(io, {.directory = folder / "", .speaker = false, .tensorboard = false, .throughput = {}});
  Evaluation evaluation(*dataset, {1, 8, 1}, false, 0);
  bool ending = true;
  const EvaluationTimes times{.every = 5, .total_steps = 10, .first = true, .interrupted = [&] { return ending; }};
  auto hook = [&] { return EvaluationHook(evaluation, model, mesh, files, times); };
  EvaluationHook first = hook();
  const Progress begin{.step = 0};
  first.start(begin);
  EXPECT_EQ(first.state().at("left_out"), -1);
  for (int64_t step : {5, 10}) {
    StepReport report;
    report.step = step;
    const Verdict verdict = first.after_step(report, {}, {.step = step});
    EXPECT_EQ(verdict.action, Action::stop_saved);
    EXPECT_EQ(first.state().at("left_out"), step);
    EXPECT_FALSE(first.loss());
  }
  ending = false;
  EvaluationHook second = hook();
  second.restore(first.state());
  second.start({.step = 10});
  EXPECT_TRUE(second.loss());
  EXPECT_EQ(second.state().at("left_out"), -1);
}

// A run that is lost at an evaluation ends there, also where it was stopped before that and makes it up.
TEST_F(TrainerTest, ALostRunEndsAtTheSameStepWhereItsEvaluationIsMadeUp) {
  RunFilesHook files(io, {.directory = folder / "", .speaker = false, .tensorboard = false, .throughput = {}});
  Evaluation evaluation(*dataset, {1, 8, 1}, false, 0);
  const data::SampleOrder order = dataset->training_order(1);
  StepBatches batches(*dataset, {1, 8, 4 / mesh.data().size()}, false);
  constexpr int64_t kSteps = 12;
  nlohmann::json states;
  Progress reached;
  // All in the second half of the run: steps 8 and 10 are evaluated, and no loss is below 0.
  auto run_on = [&](bool interrupted) {
    Trainer trainer(model, mesh, batches, order,
                    {.schedule = {.kind = optim::ScheduleKind::constant, .peak = 0.05}, .total_steps = kSteps});
    const auto at_10 = [&] { return interrupted && trainer.progress().step == 10; };
    EvaluationHook evaluations(evaluation, model, mesh, files,
                               {.every = 2, .total_steps = kSteps, .interrupted = at_10});
    LostHook lost(evaluations, {.largest_logit = 100, .bigram_loss = -1, .total_steps = kSteps});
    trainer.add(evaluations);
    trainer.add(lost);
    if (!states.is_null()) {
      trainer.progress() = reached;
      trainer.restore_hooks(states);
    }
    trainer.weights_changed();
    const Ending ending = trainer.run();
    states = trainer.hook_states();
    reached = trainer.progress();
    return ending;
  };
  EXPECT_TRUE(run_on(false).lost);
  EXPECT_EQ(reached.step, 10);
  states = nullptr;
  EXPECT_EQ(run_on(true).outcome, Outcome::saved_early);
  EXPECT_EQ(reached.step, 10);
  const Ending ending = run_on(false);
  EXPECT_TRUE(ending.lost) << ending.reason;
  EXPECT_EQ(reached.step, 10);
}

}  // namespace
}  // namespace keel::train
