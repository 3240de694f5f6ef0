// Whole runs of the program: layouts agree, resumed runs are uninterrupted ones, instability ends as promised.
#include <gmock/gmock.h>

#include "tests/framework/io/event_file.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Train : public RunFixture {};

TEST_F(Train, LayoutsAgreeOverTwentySteps) {
  ASSERT_EQ(keel("train run.yaml name=one").code, 0);
  const std::vector<double> loss = metric("one", "loss"), norm = metric("one", "gradient_norm");
  ASSERT_EQ(loss.size(), 20u);
  EXPECT_LT(loss.back(), loss.front() - 1);
  struct Layout {
    int ranks, tensor;
  };
  for (Layout layout : {Layout{2, 2}, Layout{2, 1}, Layout{4, 2}, Layout{4, 4}}) {
    const std::string name = fmt::format("r{}t{}", layout.ranks, layout.tensor);
    const Ended ended =
        keel(fmt::format("train run.yaml parallel.tensor={} name={}", layout.tensor, name), layout.ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    const std::vector<double> other = metric(name, "loss"), other_norm = metric(name, "gradient_norm");
    ASSERT_EQ(other.size(), 20u);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(other[i], loss[i], 1e-5) << name << " at step " << i + 1;
      EXPECT_NEAR(other_norm[i], norm[i], 1e-4 * norm[i]) << name << " at step " << i + 1;
    }
    EXPECT_NEAR(other_norm[0], norm[0], 1e-5 * norm[0]) << name;
  }
}

TEST_F(Train, ShardedOptimizerIsTheSameBits) {
  ASSERT_EQ(keel("train run.yaml name=zero parallel.zero=true", 2).code, 0);
  ASSERT_EQ(keel("train run.yaml name=plain parallel.zero=false", 2).code, 0);
  EXPECT_EQ(metric("zero", "loss"), metric("plain", "loss"));
  EXPECT_EQ(metric("zero", "gradient_norm"), metric("plain", "gradient_norm"));
  expect_same_tensors(checkpoint("zero", 20), checkpoint("plain", 20));
}

TEST_F(Train, ResumedIsUninterrupted) {  // CASES R33
  struct Variant {
    const char *name, *keys;
  };
  for (const Variant& variant : {Variant{"fp32", "precision=fp32"},
                                 {"bf16", "precision=bf16"},
                                 {"stochastic", "precision=bf16 optimizer.rounding=stochastic"}}) {
    const std::string whole = fmt::format("whole_{}", variant.name), cut = fmt::format("cut_{}", variant.name);
    const std::string common = fmt::format("train run.yaml {} ", variant.keys);
    ASSERT_EQ(keel(common + "name=" + whole, 2).code, 0);
    ASSERT_EQ(keel(common + "train.steps=20 name=" + cut, 2).code, 0);
    // As after a kill at step 12: what came later is gone.
    for (int step : {15, 20}) std::filesystem::remove(checkpoint(cut, step));
    const Ended ended = keel(common + "name=" + cut, 2);
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.ours, Contains(HasSubstr("going on from")));
    for (const char* key : {"loss", "gradient_norm", "update_norm", "lr", "largest_logit", "valid_loss"})
      EXPECT_EQ(metric(whole, key), metric(cut, key)) << key;
    expect_same_tensors(checkpoint(whole, 20), checkpoint(cut, 20));
  }
}

TEST_F(Train, GoesOnAtAnyLayout) {
  ASSERT_EQ(keel("train run.yaml name=run train.steps=5 parallel.tensor=2", 4).code, 0);
  int step = 5;
  for (int ranks : {2, 1, 4}) {
    const std::string before = checkpoint("run", step);
    // No step: what is loaded at this layout is saved again under another name.
    const Ended same =
        keel(fmt::format("train run.yaml name=copy_{} train.steps={} checkpoint.resume={} parallel.tensor={}", ranks,
                         step, before, ranks >= 2 ? 2 : 1),
             ranks);
    ASSERT_EQ(same.code, 0) << same.output;
    expect_same_tensors(before, checkpoint(fmt::format("copy_{}", ranks), step));
    const Ended ended = keel(
        fmt::format("train run.yaml name=run train.steps={} parallel.tensor={}", step + 5, ranks >= 2 ? 2 : 1), ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    step += 5;
  }
  EXPECT_EQ(metric("run", "loss").size(), 20u);
}

// Without QK-Norm, and with a learning rate that lets logits grow; the factors come from one maximum over all ranks.
TEST_F(Train, QkClipHoldsTheLogitsAtAnyLayout) {
  const std::string common = "train run.yaml model.attention.qk_norm.kind=none optimizer.lr=1e-2 ";
  const std::string clip = "'stability.qk_clip={tau: 0.5}' ";
  ASSERT_EQ(keel(common + "name=free").code, 0);
  ASSERT_EQ(keel(common + clip + "name=one").code, 0);
  const std::vector<double> free = metric("free", "largest_logit"), one = metric("one", "largest_logit");
  EXPECT_GT(free.back(), 1.2);
  EXPECT_LT(one.back(), 0.75);  // one update beyond tau
  struct Layout {
    int ranks, tensor;
  };
  for (Layout layout : {Layout{2, 1}, Layout{4, 2}}) {
    const std::string name = fmt::format("r{}t{}", layout.ranks, layout.tensor);
    const Ended ended =
        keel(common + clip + fmt::format("parallel.tensor={} name={}", layout.tensor, name), layout.ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
    const std::vector<double> other = metric(name, "largest_logit");
    for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(other[i], one[i], 1e-3 * one[i]) << name << " at step " << i + 1;
  }
}

TEST_F(Train, NonFiniteLossIsSkippedThenStopsTheRun) {
  // A learning rate that overflows fp32 within a few steps.
  const Ended ended = keel(
      "train run.yaml name=blown optimizer.lr=1e30 optimizer.clip_norm=null schedule.warmup_steps=0 "
      "stability.max_skips=3 train.steps=40 checkpoint.every=1",
      2);
  EXPECT_EQ(ended.code, 3) << ended.output;
  const std::vector<double> updates = metric("blown", "updates");
  ASSERT_GE(updates.size(), 4u);
  EXPECT_EQ(updates[updates.size() - 1], updates[updates.size() - 4]) << "skipped steps do not count as updates";
  EXPECT_THAT(ended.output, HasSubstr("stability.max_skips"));
  EXPECT_THAT(ended.output, HasSubstr("stopped at step"));
  EXPECT_THAT(ended.output, HasSubstr("first in "));
  std::string newest;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "runs/blown/checkpoints"))
    newest = std::max(newest, entry.path().string());
  EXPECT_EQ(keel("inspect --verify " + newest).code, 0) << newest;
}

// CASES R54: what is printed, kept and stored is what the run did; and R08: what is decayed is said.
TEST_F(Train, TheConfigIsTheSameWhereverItIsKept) {
  const std::string overrides = "run.yaml name=kept optimizer.lr=2e-3 train.steps=3 schedule.warmup_steps=1";
  const Ended ended = keel("train " + overrides, 2);
  ASSERT_EQ(ended.code, 0) << ended.output;
  const std::string printed = keel("train " + overrides + " --print-config").output;
  std::ifstream file(directory_ / "runs/kept/config.yaml");
  const std::string kept((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(printed, kept);
  EXPECT_EQ(nlohmann::json::parse(keel("inspect --json " + checkpoint("kept", 3)).output)["config"], kept);
  EXPECT_THAT(kept, HasSubstr("lr: 0.002"));
  EXPECT_THAT(ended.ours, Contains(AllOf(HasSubstr("config, where it is not the default: precision=fp32 "),
                                         HasSubstr(" optimizer.lr=0.002 "), HasSubstr(" model.hidden=32 "),
                                         Not(HasSubstr("optimizer.beta1")))));
  EXPECT_THAT(ended.ours, Contains(HasSubstr("weight decay on 38.9k weights, none on the other 264")));
}

// A model whose heads are shared, with overrides of what the checkpoint stores; and what looks at files speaks once.
TEST_F(Train, EvaluatesOnAnyRanks) {
  ASSERT_EQ(keel("train run.yaml name=run train.steps=5").code, 0);
  auto loss = [&](const std::string& arguments, int ranks) {
    const Ended ended = keel("eval " + checkpoint("run", 5) + " " + arguments, ranks);
    EXPECT_EQ(ended.code, 0) << ended.output;
    return ended.output.substr(0, ended.output.find(" nats per token"));
  };
  const std::string one = loss("", 0);
  EXPECT_THAT(one, HasSubstr("step 5: loss "));
  EXPECT_EQ(loss("--tensor 2", 2), one);
  EXPECT_EQ(loss("--tensor 2 data.valid=corpus-valid", 4), one);
  EXPECT_NE(loss("data.valid=corpus", 0), one);
  EXPECT_EQ(keel("eval " + checkpoint("run", 5) + " --tensor 3", 3).code, 2);
  const std::string inspect = "inspect " + checkpoint("run", 5);
  EXPECT_EQ(keel(inspect, 2).output, keel(inspect).output);
}

// CASES R32: what may change takes effect from the next step on, and is told; what is fixed is refused.
TEST_F(Train, ChangesOnResumeTakeEffectAndAreTold) {
  ASSERT_EQ(keel("train run.yaml name=run checkpoint.every=10").code, 0);
  ASSERT_EQ(keel("train run.yaml name=other optimizer.lr=1e-3").code, 0);
  const std::vector<double> before = metric("run", "lr"), other = metric("other", "lr");
  std::filesystem::remove(checkpoint("run", 20));
  const Ended ended = keel("train run.yaml name=run optimizer.lr=1e-3", 2);
  ASSERT_EQ(ended.code, 0) << ended.output;
  const std::vector<double> after = metric("run", "lr");
  ASSERT_EQ(after.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(after[i], i < 10 ? before[i] : other[i]) << i;
  std::map<std::string, std::vector<std::string>> changes;
  std::ifstream events(directory_ / "runs/run/events.jsonl");
  for (std::string line; std::getline(events, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.contains("change")) changes[event["event"]].push_back(event["change"]);
  }
  EXPECT_THAT(changes["config_changed"], Contains("optimizer.lr: 0.003 -> 0.001"));
  EXPECT_THAT(changes["environment_changed"], Contains("data_ranks: 1 -> 2"));
}

// The memory that a run plans is known before its first step, and is that of the layout.
TEST_F(Train, MemoryIsPlannedWithActivations) {
  auto planned = [&](const std::string& name) {
    std::ifstream events(directory_ / "runs" / name / "events.jsonl");
    std::vector<int64_t> bytes;
    for (std::string line; std::getline(events, line);)
      if (const auto event = nlohmann::json::parse(line); event.contains("bytes") && event["event"] == "memory")
        bytes.push_back(event["bytes"]);
    return bytes;
  };
  ASSERT_EQ(keel("train run.yaml name=short schedule.warmup_steps=1 train.steps=2 data.sequence_length=32").code, 0);
  ASSERT_EQ(keel("train run.yaml name=long schedule.warmup_steps=1 train.steps=2 data.sequence_length=256").code, 0);
  ASSERT_EQ(keel("train run.yaml name=long schedule.warmup_steps=1 train.steps=4 data.sequence_length=256").code, 0);
  const std::vector<int64_t> few = planned("short"), many = planned("long");
  ASSERT_EQ(many.size(), 2u);
  for (int64_t bytes : many) EXPECT_EQ(bytes, many[0]);
  EXPECT_GT(many[0] - few[0], 2 * (256 - 32) * 2 * 32 * 4 * 2);  // a stream of each layer, at the very least
}

// The same text on every layout, since the model is; a stop and a resume leave each line once.
TEST_F(Train, WritesOnFromPrompts) {
  const std::string common = "train run.yaml 'eval.prompts=[\"the norm\", \"\"]' eval.sample_tokens=20 ";
  ASSERT_EQ(keel(common + "name=one").code, 0);
  ASSERT_EQ(keel(common + "name=four parallel.tensor=2", 4).code, 0);
  for (int step : {15, 20}) std::filesystem::remove(checkpoint("four", step));
  const Ended ended = keel(common + "name=four parallel.tensor=2", 4);
  ASSERT_EQ(ended.code, 0) << ended.output;
  auto samples = [&](const std::string& name) {
    std::ifstream file(directory_ / "runs" / name / "samples.jsonl");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(std::ranges::count(samples("one"), '\n'), 4);  // two prompts, steps 10 and 20
  EXPECT_THAT(samples("one"), HasSubstr(R"({"step":20,"prompt":"the norm","text":")"));
  EXPECT_EQ(samples("four"), samples("one"));
  EXPECT_THAT(ended.ours, Contains(HasSubstr("step 20: the norm")));
}

// Operations of a token by hand: of each of two layers q and output 32 x 32, k and v 16 x 32, three of the feed-forward
// 64 x 32; the head of 320 ids, 257 and padding. And TensorBoard shows what metrics.jsonl says.
TEST_F(Train, SaysHowFastItIs) {
  ASSERT_EQ(keel("train run.yaml name=run train.steps=4 schedule.warmup_steps=1 eval.every=2", 2).code, 0);
  constexpr double kProducts = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32) + 320 * 32, kAttention = 12 * 2 * 32 * 32;
  const std::vector<double> full = metric("run", "mfu_full"), causal = metric("run", "mfu_causal"),
                            speed = metric("run", "tokens_per_second");
  ASSERT_EQ(full.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_GT(causal[i], 0);
    EXPECT_NEAR(full[i] / causal[i], (6 * kProducts + kAttention) / (6 * kProducts + kAttention / 2), 1e-12);
    EXPECT_NEAR(causal[i] / speed[i], causal[0] / speed[0], 1e-12 * causal[0] / speed[0]) << "the same peak";
  }
  std::map<std::string, std::vector<double>> shown;
  for (const io::Event& event : io::read_event_folder(directory_ / "runs/run/tensorboard"))
    for (const auto& [tag, value] : event.scalars) shown[tag].push_back(double(value));
  const std::map<std::string, std::string> keys = {{"train/loss", "loss"},
                                                   {"train/gradient_norm", "gradient_norm"},
                                                   {"train/lr", "lr"},
                                                   {"train/z_loss", "z_loss"},
                                                   {"attention/largest_logit", "largest_logit"},
                                                   {"speed/tokens_per_second", "tokens_per_second"},
                                                   {"speed/mfu_full", "mfu_full"},
                                                   {"speed/mfu_causal", "mfu_causal"},
                                                   {"valid/loss", "valid_loss"}};
  EXPECT_EQ(shown.size(), keys.size());
  for (const auto& [tag, key] : keys) {
    std::vector<double> said = metric("run", key);
    for (double& value : said) value = double(float(value));
    EXPECT_EQ(shown[tag], said) << tag;
  }
}

// Steps 4 to 6 of both ranks, the save after step 5 with them; a rank's file opens in Chrome's trace viewer.
TEST_F(Train, RecordsWhereTheTimeOfSomeStepsGoes) {
  const Ended ended = keel(
      "train run.yaml name=run train.steps=8 checkpoint.background=false 'telemetry.trace={from: 4, steps: 3}'", 2);
  ASSERT_EQ(ended.code, 0) << ended.output;
  std::map<std::string, int64_t> first;
  for (int rank = 0; rank < 2; ++rank) {
    std::map<std::string, int64_t> count;
    std::vector<int64_t> passes;
    for (const auto& span : spans("run", 4, rank)) {
      ++count[span["name"]];
      EXPECT_EQ(span["pid"], rank);
      if (span["name"] == "forward and backward") passes.push_back(span["args"]["index"]);
    }
    EXPECT_THAT(passes, ElementsAre(4, 5, 6));
    const int64_t blocks = 3 * 2 * 2;  // steps, micro-steps of a rank, layers
    EXPECT_EQ(count["block forward"], blocks);
    EXPECT_EQ(count["attention_backward"], blocks);
    EXPECT_EQ(count["save"], 1);
    EXPECT_GE(count["all_reduce"], 3);
    EXPECT_GE(count["I/O job"], 1);
    if (rank == 0) first = count;
    EXPECT_EQ(count["all_reduce"], first["all_reduce"]);
  }
}

// Written in parts by 3 ranks, gone on from by 2, looked at: gains of 1 and g0 = 1/sqrt(d) with d = 8 bound |s| by
// sqrt(d).
TEST_F(Train, PartsAndInspect) {
  ASSERT_EQ(keel("train run.yaml name=run batch.sequences=12 checkpoint.parts=3 train.steps=5", 3).code, 0);
  ASSERT_EQ(
      keel("train run.yaml name=run batch.sequences=12 checkpoint.parts=2 train.steps=7 optimizer.lr=1e-20", 2).code,
      0);
  const Ended plain = keel("inspect --verify --bounds " + checkpoint("run", 7));
  EXPECT_EQ(plain.code, 0) << plain.output;
  EXPECT_THAT(plain.output, HasSubstr("in 2 parts"));
  EXPECT_THAT(plain.output, HasSubstr("every byte of"));
  ASSERT_EQ(keel("train run.yaml name=start optimizer.lr=1e-20 schedule.warmup_steps=0 train.steps=1").code, 0);
  EXPECT_THAT(keel("inspect --bounds " + checkpoint("start", 1)).output,
              HasSubstr("layer 1   2.82843 2.82843 2.82843 2.82843"));
  const Ended json = keel("inspect --json --bounds " + checkpoint("start", 1));
  const auto object = nlohmann::json::parse(json.output);
  EXPECT_EQ(object["bounds"].size(), 2u);
  EXPECT_NEAR(object["bounds"][0][3].get<double>(), std::sqrt(8.0), 1e-5);
  EXPECT_EQ(object["parts"], 0);
  std::filesystem::remove(directory_ / "runs/run/checkpoints/step-00000007.part-0001.h5");
  const Ended missing = keel("inspect --verify " + checkpoint("run", 7));
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.ours, Contains(HasSubstr("part-0001.h5")));
}

}  // namespace
}  // namespace keel::testing
