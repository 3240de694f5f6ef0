// The studies in small: 0.5M parameters, 100 steps at a learning rate of 0.1. Without QK-Norm logits run away; with
// each kind of it they stay below 100 and, head by head and step by step, below what its gains guarantee.
#include <gmock/gmock.h>

#include "framework/lab/ablation.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

class SmallStudy : public RunFixture {
 protected:
  static constexpr const char* kStudy = R"(
precision: bf16
model: {hidden: 96, layers: 4, ffn: 256, attention: {heads: 3, logit_scale: {kind: fixed}}}
data: {train: corpus, valid: corpus-valid, sequence_length: 64}
batch: {sequences: 8}
optimizer: {weight_decay: 1e-4, decay: independent}
schedule: {warmup_steps: 10}
train: {steps: 100, z_loss: 1e-4}
eval: {every: null, sequences: 32}
stability: {spike: {enabled: false}, max_skips: 1000}
checkpoint: {every: null, final: false}
ablate:
  arms:
    none: {model.attention.qk_norm.kind: none}
    l2: {model.attention.qk_norm.kind: l2}
    rms: {model.attention.qk_norm.kind: rms}
    layer: {model.attention.qk_norm.kind: layer}
  axes: {optimizer.lr: [1e-1]}
)";

  // Steps and heads whose recorded logit is above the recorded bound, and how many were compared.
  std::pair<int, int> outside_bounds(const lab::RunRecord& run) {
    const lab::HeadRecord &logits = *run.head("largest_logit"), &bounds = *run.head("logit_bound");
    EXPECT_EQ(logits.steps, bounds.steps);
    constexpr double kRounding = (1 + 1.0 / 256) * (1 + 1.0 / 256) * (1 + 1e-5);
    int outside = 0;
    for (size_t i = 0; i < logits.values.size(); ++i) outside += !(logits.values[i] <= bounds.values[i] * kRounding);
    return {outside, int(logits.values.size())};
  }
};

TEST_F(SmallStudy, OnlyQkNormHoldsTheLogits) {
  write_config("small.yaml", kStudy);
  const Ended ended = keel("ablate small.yaml");
  ASSERT_EQ(ended.code, 0) << ended.output;
  io::IoThread io;
  const lab::Ablation ablation = lab::read_ablation((directory_ / "runs/small").string());
  ASSERT_EQ(ablation.finished(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const lab::Cell& cell = ablation.plan.cells[i];
    const lab::CellResult& result = *ablation.results[i];
    const lab::RunRecord run = lab::read_run(io, lab::cell_directory(ablation.directory, cell));
    ASSERT_EQ(run.steps.size(), 100u);
    if (cell.arm == "none") {
      EXPECT_GT(result.largest_logit, 1e3);
      EXPECT_FALSE(result.bound_used);
      continue;
    }
    EXPECT_LT(result.largest_logit, 100) << cell.arm;
    EXPECT_GT(result.bound_used.value(), 0.3) << cell.arm << ": a bound far from reached proves little";
    EXPECT_LE(result.bound_used.value(), 1.01) << cell.arm;
    EXPECT_EQ(result.outside_bound, 0) << cell.arm;
    EXPECT_EQ(outside_bounds(run), std::pair(0, 100 * 4 * 3)) << cell.arm;
  }
}

// Four of 32 features with deviation 0.02 * 1000: the share of them beyond 6 is that of a normal value beyond 0.3, 76%.
TEST_F(SmallStudy, PlantedOutliersAreSeen) {
  io::IoThread io;
  for (auto [factor, share] : {std::pair(1, 0.0), {1000, 0.76 * 4 / 32}}) {
    const std::string name = fmt::format("factor{}", factor);
    const Ended ended = keel(fmt::format(
        "train run.yaml train.steps=5 'model.init.outliers={{features: 4, factor: {}}}' name={}", factor, name));
    ASSERT_EQ(ended.code, 0) << ended.output;
    const lab::RunRecord run = lab::read_run(io, (directory_ / "runs" / name).string());
    EXPECT_NEAR(run.head("stream_outliers")->row(0)[0], share, 0.03) << "before the first update";
  }
}

// What every rank knows of its heads comes together: replicated KV heads, sharded gains and sums over tokens included.
TEST_F(SmallStudy, TelemetryIsTheSameAtAnyLayout) {
  std::vector<lab::RunRecord> runs;
  io::IoThread io;
  for (auto [ranks, tensor] : {std::pair(1, 1), {2, 2}, {4, 4}, {4, 2}}) {
    const std::string name = fmt::format("ranks{}x{}", ranks, tensor);
    const Ended ended =
        keel(fmt::format("train run.yaml optimizer.lr=1e-2 parallel.tensor={} name={}", tensor, name), ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    runs.push_back(lab::read_run(io, (directory_ / "runs" / name).string()));
  }
  const lab::HeadRecord& bounds = *runs[0].head("logit_bound");
  ASSERT_EQ(bounds.steps.size(), 20u) << "every step";
  EXPECT_NE(bounds.row(0)[0], bounds.row(19)[0]) << "gains moved";
  EXPECT_NE(bounds.row(19)[0], bounds.row(19)[3]) << "heads differ";
  for (const char* name :
       {"logit_bound", "q_gain", "k_gain", "logit_scale", "stream_outliers", "stream_kurtosis", "parallel"}) {
    const lab::HeadRecord& whole = *runs[0].head(name);
    EXPECT_EQ(whole.width, std::string(name).starts_with("stream") ? 1u
                           : name == std::string("k_gain")         ? 2u
                                                                   : 4u)
        << name;
    for (size_t run = 1; run < runs.size(); ++run) {
      // Data ranks look at other tokens of the batch, so only what does not depend on the sample is the same there.
      const bool sampled = name == std::string("parallel") || std::string(name).starts_with("stream");
      if (sampled && run == 3) continue;
      const lab::HeadRecord& split = *runs[run].head(name);
      ASSERT_EQ(split.steps, whole.steps) << name;
      for (size_t i = 0; i < whole.values.size(); ++i)
        EXPECT_NEAR(split.values[i], whole.values[i], 5e-3 * whole.values[i] + 5e-3) << name << " of run " << run;
    }
  }
}

}  // namespace
}  // namespace keel::testing
