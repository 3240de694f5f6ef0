// keel plan: exact counts, and its memory against what a run of the program takes.
#include <gmock/gmock.h>

#include "framework/base/text.h"
#include "launch/plan/plan_layout.h"
#include "models/decoder/parallelize.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Plan : public RunFixture {
 protected:
  // The number on the line that begins with `what`.
  static double value_of(const Ended& ended, const std::string& what) {
    for (const std::string& line : ended.lines) {
      const size_t at = line.find_first_not_of(' ');
      if (at != std::string::npos && line.compare(at, what.size(), what) == 0)
        return std::strtod(line.c_str() + at + what.size(), nullptr);
    }
    return -1;
  }
  // Largest resident memory of any process of the command, in GiB.
  double measured(const std::string& arguments, int ranks) {
    const std::string measure =
        "python3 -c 'import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
        "print(\"KIB\", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)' ";
    const std::string launcher =
        ranks > 1 ? fmt::format("{} --oversubscribe --bind-to none -n {} ", MPIRUN, ranks) : "";
    const Ended ended =
        run_command(fmt::format("cd {} && env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {}{}{} {}",
                                directory_.string(), measure, launcher, KEEL_PROGRAM, arguments));
    EXPECT_EQ(ended.code, 0) << ended.output;
    return value_of(ended, "KIB") / double(1 << 20);
  }
};

TEST_F(Plan, CountsWeightsOfALargeModel) {  // QKNORM.md section 4
  const std::string command = "plan " KEEL_SOURCE_DIR
                              "/configs/families/llama3-70b.yaml --ranks 64 --device h200 "
                              "model.attention.qk_norm.kind=rms model.attention.qk_norm.weight=per_head "
                              "model.attention.logit_scale.kind=";
  const Ended fixed = keel(command + "fixed");
  ASSERT_EQ(fixed.code, 0) << fixed.output;
  EXPECT_EQ(value_of(fixed, "parameters"), 70'553'706'496.0 + 737'280);
  EXPECT_EQ(value_of(fixed, "QK-Norm weights"), 737'280);
  EXPECT_EQ(value_of(fixed, "logit scales"), 0);
  EXPECT_EQ(value_of(keel(command + "fixed model.attention.kv_heads=64"), "QK-Norm weights"), 1'310'720);
  const Ended learned = keel(command + "per_head");
  EXPECT_EQ(value_of(learned, "QK-Norm weights"), 737'280);
  EXPECT_EQ(value_of(learned, "logit scales"), 5'120);
  EXPECT_THAT(learned.output, HasSubstr("does not fit"));  // data 64 holds the whole model on each GPU
  EXPECT_THAT(keel("plan run.yaml --device h20").output, HasSubstr("did you mean h200"));
}

const DeviceSheet kDevice = {.name = "device",
                             .memory_bytes = 1e9,
                             .bf16_rate = 1e12,
                             .fp32_rate = 1e12,
                             .memory_rate = 1e12,
                             .link_rate = 1e9,
                             .network_rate = 1e9,
                             .ranks_per_host = 8};

// 6 N + 12 L H d T operations; gradients there and weights back; weights, gradients and moments by hand.
TEST_F(Plan, CountsOfASmallModel) {
  const FullConfig config =
      read_full_config((directory_ / "run.yaml").string(), std::vector<std::string>{"model.vocab=257"});
  DeviceSheet device = kDevice;
  const LayoutPlan whole = plan_layout(config, device, 1, 1), cut = plan_layout(config, device, 2, 2);
  const double padding = 2.0 * (320 - 257) * 32;  // of both tables, which is in memory and is no parameter
  const double parameters = double(models::Decoder(config.model).cost(32).parameters) + padding;
  EXPECT_NEAR(whole.memory.weights, 4 * parameters, 4 * 64);
  EXPECT_EQ(whole.memory.moments, 2 * whole.memory.weights);
  EXPECT_EQ(whole.tensor_bytes, 0);
  EXPECT_EQ(whole.data_bytes, 0);
  EXPECT_EQ(cut.memory.moments, cut.memory.weights);  // of half the weights, cut once more
  EXPECT_EQ(cut.data_bytes, cut.memory.weights);      // half of it twice
  // A ring of two sends each all-reduced byte once. Per token: D after the embedding, after both parts of each of two
  // layers, before each of them again, and before the head; then three numbers of the loss.
  EXPECT_EQ(cut.tensor_bytes, 4.0 * 32 * 4 * (32.0 * (1 + 4 + 4 + 1) + 3));
  EXPECT_GT(whole.bytes_per_sequence, 0);
  EXPECT_TRUE(whole.fits());
  device.memory_bytes = whole.memory.total() - 1;
  EXPECT_EQ(plan_layout(config, device, 1, 1).micro, whole.micro) << "as the config says";
  EXPECT_FALSE(plan_layout(config, device, 1, 1).fits());
  const FullConfig open = read_full_config((directory_ / "run.yaml").string(),
                                           std::vector<std::string>{"model.vocab=257", "batch.micro_sequences=auto"});
  device.memory_bytes = 1e9;
  const LayoutPlan most = plan_layout(open, device, 1, 1);
  EXPECT_EQ(most.micro, most.rows);
  device.memory_bytes = most.memory.total() - 1;
  EXPECT_LT(plan_layout(open, device, 1, 1).micro, most.micro);
  EXPECT_TRUE(plan_layout(open, device, 1, 1).fits());
  device.memory_bytes = 1e3;
  EXPECT_FALSE(plan_layout(config, device, 1, 1).fits());
  EXPECT_THAT(plan_layout(config, device, 3, 1).refused, HasSubstr("3 ranks do not divide 4 heads"));
}

// Products and memory traffic overlap; data exchanges hide behind two thirds of that, tensor exchanges do not.
TEST(PlannedTime, IsTheRoofline) {
  EXPECT_DOUBLE_EQ((PlannedTime{.products = 3, .memory = 2, .tensor = 1, .data = 2}.total()), 3 + 1);
  EXPECT_DOUBLE_EQ((PlannedTime{.products = 3, .memory = 2, .tensor = 1, .data = 5}.total()), 3 + 1 + (5 - 2));
  EXPECT_DOUBLE_EQ((PlannedTime{.products = 1, .memory = 6, .tensor = 0.5, .data = 4.5}.total()), 6 + 0.5 + 0.5);
}

TEST_F(Plan, TimesOfASmallModel) {
  const auto plan = [&](int ranks_per_host) {
    const FullConfig config =
        read_full_config((directory_ / "run.yaml").string(),
                         std::vector<std::string>{"model.vocab=320", "parallel.tensor_across_hosts=true"});
    DeviceSheet device = kDevice;
    device.gpu = true;
    device.fp32_rate = 2e12;
    device.memory_rate = 4e10;
    device.network_rate = 1e8;
    device.ranks_per_host = ranks_per_host;
    return plan_layout(config, device, 2, 2);
  };
  const LayoutPlan cut = plan(4);
  // Of each of two layers q and output 32 x 32, k and v 16 x 32, three of the feed-forward 64 x 32; and the head.
  const double weights = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32) + 320 * 32;
  const double attention = 2 * 12 * (4 * 8) * 32 / 2;  // operations per token, of two layers, causal
  const double tokens = 4 * 32;                        // of half of 8 sequences
  EXPECT_DOUBLE_EQ(cut.time.products, tokens * (6 * weights + attention) / 2 / 2e12);
  // Two micro-steps of two sequences.
  const PlannedMemory& memory = cut.memory;
  EXPECT_EQ(memory.copies, 0);
  EXPECT_DOUBLE_EQ(cut.time.memory, (2 * 3 * (memory.weights + memory.activations) + 2 * memory.weights +
                                     memory.gradients + 2 * memory.moments) /
                                        4e10);
  EXPECT_GT(cut.time.memory, 0);
  EXPECT_DOUBLE_EQ(cut.time.tensor, cut.tensor_bytes / 1e9);
  EXPECT_DOUBLE_EQ(cut.time.data, cut.data_bytes / 1e9);
  EXPECT_DOUBLE_EQ(plan(2).time.tensor, cut.tensor_bytes / 1e9) << "within a host";
  EXPECT_DOUBLE_EQ(plan(2).time.data, cut.data_bytes / 1e8) << "between hosts";
  EXPECT_DOUBLE_EQ(plan(1).time.tensor, cut.tensor_bytes / 1e8);
}

// A ring sends 2 (R - 1) / R of what R ranks sum: with one KV head on four ranks the gradients of k, v and its gains,
// and those of gains that all heads share, once a step, of what a data rank updates.
TEST_F(Plan, CountsTheSumsOfSharedGradients) {
  const auto bytes = [&](int64_t data, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.vocab=257", "batch.micro_sequences=1"});
    const FullConfig config = read_full_config((directory_ / "run.yaml").string(), overrides);
    return plan_layout(config, DeviceSheet{.memory_bytes = 1e12, .ranks_per_host = 8}, 4, data).tensor_bytes;
  };
  const double all = bytes(1, {"model.attention.kv_heads=4"});
  const double ring = 2 * 0.75 * 4 * 2;  // bytes sent of an element of each of two layers
  EXPECT_EQ(bytes(1, {"model.attention.kv_heads=1"}) - all, ring * (2 * 8 * 32 + 8));
  EXPECT_EQ(bytes(1, {"model.attention.kv_heads=4", "model.attention.qk_norm.weight=shared"}) - all, ring * 2 * 8);
  EXPECT_EQ(bytes(2, {"model.attention.kv_heads=1"}) - all / 2, ring * (2 * 8 * 32 + 8) / 2);
}

// A rank's own, where KV heads are copied: not a share of the whole.
TEST_F(Plan, ARankHoldsItsOwnWeights) {
  const auto own = [&](int64_t kv_heads, int64_t tensor) {
    const std::vector<std::string> overrides = {"model.vocab=257",
                                                fmt::format("model.attention.kv_heads={}", kv_heads)};
    const FullConfig config = read_full_config((directory_ / "run.yaml").string(), overrides);
    models::Decoder decoder(config.model);
    models::parallelize(decoder, int(tensor));
    decoder.parameters().allocate({.device = {DeviceKind::meta}, .tensor = {0, int(tensor)}});
    int64_t elements = 0;
    for (const nn::Parameter& parameter : decoder.parameters().all())
      if (parameter.spec.product) elements += parameter.local.elements();
    return elements;
  };
  EXPECT_EQ(own(4, 1), 4 * own(4, 4));
  EXPECT_EQ(own(1, 4), own(4, 4)) << "a KV head on each of four ranks, the same or another";
}

// Two ranks of a machine have half of it each, also of the rates that are measured.
TEST_F(Plan, RanksShareTheMachine) {
  const DeviceSheet machine{.memory_bytes = 8, .bf16_rate = 6, .fp32_rate = 4, .memory_rate = 2};
  const DeviceSheet half = shared_by(2, machine);
  EXPECT_EQ(half.memory_bytes, 4);
  EXPECT_EQ(half.bf16_rate, 3);
  EXPECT_EQ(half.fp32_rate, 2);
  EXPECT_EQ(half.memory_rate, 1);
  EXPECT_EQ(half.ranks_per_host, 2);
  EXPECT_EQ(device_sheet("cpu", 2).memory_rate, device_sheet("cpu", 1).memory_rate / 2);
}

// Logits exist a chunk at a time: activations of large micro-batches grow by less than those of small ones.
TEST_F(Plan, LogitsComeInChunks) {
  auto activations = [&](int micro) {
    const FullConfig config =
        read_full_config((directory_ / "run.yaml").string(),
                         std::vector<std::string>{"model.vocab=16384", "batch.sequences=64", "parallel.tensor=1",
                                                  fmt::format("batch.micro_sequences={}", micro)});
    return plan_layout(config, DeviceSheet{.memory_bytes = 1e12}, 1, 1).memory.activations;
  };
  const double one = activations(1), two = activations(2), many = activations(64);
  EXPECT_LT(many, one + 32 * (two - one));
  EXPECT_GT(many, two);
}

// What training refuses cannot rank: eight data ranks have one sequence each, and micro-batches of two.
TEST_F(Plan, RefusesLayoutsThatTrainingRefuses) {
  const Ended ended = keel("plan run.yaml --ranks 8 model.attention.heads=8 model.attention.head_dim=8");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const std::string ranking = ended.output.substr(ended.output.find("layouts, those that fit first"));
  EXPECT_THAT(ranking, ContainsRegex("1 +8 +.*8 sequences do not divide into 8 data ranks x micro_sequences 2"));
  EXPECT_THAT(ranking, ContainsRegex("2 +4 +2 "));
  EXPECT_THAT(ended.output, HasSubstr("micro-batches of 2 of"));
}

TEST_F(Plan, MemoryIsWhatARunTakes) {
  struct Case {
    const char* overrides;
    int ranks;
  };
  const std::string common =
      "model.vocab=4096 batch.sequences=8 batch.micro_sequences=4 data.sequence_length=128 train.steps=2 "
      "eval.every=null "
      "checkpoint.final=false schedule.warmup_steps=0 ";
  const Case cases[] = {{"model.hidden=512 model.ffn=1536 model.layers=6", 1},
                        {"precision=bf16 model.preset=gemma3 model.hidden=256 model.ffn=1024 model.layers=12 "
                         "model.attention.head_dim=64 model.attention.window=32",
                         1},
                        {"model.hidden=640 model.ffn=1280 model.layers=4 parallel.data=2", 2}};
  int number = 0;
  for (const Case& c : cases) {
    const std::string overrides = common + c.overrides;
    const Ended plan = keel(fmt::format("plan run.yaml --ranks {} {}", c.ranks, overrides));
    ASSERT_EQ(plan.code, 0) << plan.output;
    const double planned = value_of(plan, "peak"),
                 taken = measured(fmt::format("train run.yaml name=plan{} {}", number++, overrides), c.ranks);
    EXPECT_GT(taken, 0.3) << c.overrides;
    EXPECT_NEAR(planned, taken, 0.1 * taken) << c.overrides << "\n" << plan.output;
    RecordProperty(fmt::format("case{}", number), fmt::format("{:.3f} planned, {:.3f} taken", planned, taken));
    fmt::print("{:.3f} GiB planned, {:.3f} GiB taken: {}\n", planned, taken, c.overrides);
  }
}

}  // namespace
}  // namespace keel::testing
