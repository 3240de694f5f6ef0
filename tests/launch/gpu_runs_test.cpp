// Whole runs of the program on GPUs, or on their stand-in: the same losses as on the CPU, the same files.
#include <gmock/gmock.h>

#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;

class DeviceRuns : public RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    write_config("device.yaml", R"(
precision: fp32
model: {kind: decoder, hidden: 32, layers: 2, ffn: 48, attention: {heads: 4, kv_heads: 2}}
data: {train: corpus, valid: corpus-valid, sequence_length: 16, document_mask: true}
batch: {sequences: 4, micro_sequences: 1}
optimizer: {lr: 1e-2}
train: {steps: 6}
eval: {every: 3, sequences: 4}
checkpoint: {every: 3, keep: 10}
telemetry: {every: 3}
stability: {qk_clip: {tau: 2}, check_replicas: 3}
)");
  }
};

TEST_F(DeviceRuns, LossesAreThoseOfTheCpu) {
  const Ended there = keel("train device.yaml name=gpu device=cuda parallel.tensor=2", 2);
  ASSERT_EQ(there.code, 0) << there.output;
  EXPECT_THAT(there.output, HasSubstr("on cuda:0"));
  ASSERT_EQ(keel("train device.yaml name=cpu device=cpu").code, 0);
  for (auto [key, tolerance] : {std::pair("loss", 1e-5),
                                {"valid_loss", 1e-5},
                                {"gradient_norm", 1e-4},
                                {"update_norm", 1e-3},
                                {"largest_logit", 1e-4}}) {
    const std::vector<double> gpu = metric("gpu", key), cpu = metric("cpu", key);
    ASSERT_EQ(gpu.size(), cpu.size()) << key;
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], tolerance * cpu[i]) << key << " at " << i;
  }
}

TEST_F(DeviceRuns, ResumedIsUninterruptedAndAnyDeviceReadsTheFile) {
  const std::string common = "train device.yaml device=cuda ";
  ASSERT_EQ(keel(common + "name=whole", 2).code, 0);
  ASSERT_EQ(keel(common + "name=cut", 2).code, 0);
  std::filesystem::remove(checkpoint("cut", 6));
  const Ended again = keel(common + "name=cut", 2);
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("going on from"));
  for (const char* key : {"loss", "gradient_norm", "update_norm", "lr", "largest_logit", "valid_loss"})
    EXPECT_EQ(metric("whole", key), metric("cut", key)) << key;
  expect_same_tensors(checkpoint("whole", 6), checkpoint("cut", 6));

  // No step: what one device loads is saved again as it was; then back.
  std::string file = checkpoint("whole", 3);
  for (const char* device : {"cpu", "cuda"}) {
    const std::string name = std::string("copy_") + device;
    const Ended copied =
        keel(fmt::format("train device.yaml device={} name={} train.steps=3 checkpoint.resume={}", device, name, file));
    ASSERT_EQ(copied.code, 0) << copied.output;
    expect_same_tensors(file, checkpoint(name, 3));
    file = checkpoint(name, 3);
  }
}

// Between telemetry steps, evaluations and saves the host waits for its GPU once a step, to read the step's numbers;
// the log does not make it wait (and saves in the background do so in a thread of their own). CASES.md R75.
TEST_F(DeviceRuns, TheHostWaitsOnceAStep) {
  for (int every : {1, 100}) {
    const std::string name = fmt::format("log{}", every);
    const Ended ended =
        keel(fmt::format("train device.yaml name={} device=cuda log.every={} checkpoint.background=false "
                         "'telemetry.trace={{from: 4, steps: 2}}'",
                         name, every),
             2);
    ASSERT_EQ(ended.code, 0) << ended.output;
    for (int rank = 0; rank < 2; ++rank) {
      const auto all = spans(name, 4, rank);
      EXPECT_EQ(std::ranges::count(all, "waiting for the GPU", [](const auto& span) { return span["name"]; }), 2);
      EXPECT_EQ(std::ranges::count(all, "updating weights", [](const auto& span) { return span["name"]; }), 2);
    }
  }
}

// At this rate the loss soon rises, and that is a spike here: the run goes back, on the same GPU, and then gives up.
TEST_F(DeviceRuns, GoesBackToACheckpoint) {
  const Ended ended = keel(
      "train device.yaml name=back device=cuda train.steps=8 checkpoint.every=1 optimizer.lr=3 stability.max_skips=0 "
      "stability.spike.min_history=2 stability.spike.window=2 stability.spike.sigmas=1e-6 "
      "stability.spike.deviation_floor=1e-6 stability.lower_lr.times=0 stability.rollback.times=1");
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("going back to"));
}

TEST_F(DeviceRuns, AutoSaysWhyItIsTheCpuWhereThereAreGpus) {
  const std::string common = "train device.yaml train.steps=1 name=";
  for (auto [environment, ranks, reason] :
       {std::tuple(std::string("KEEL_CUDA_HOST_DEVICES=1"), 2, "device: auto is the CPU here: 2 ranks on host"),
        {"KEEL_CUDA_HOST_DRIVER=12020", 1, "the driver is made for CUDA 12.2"},
        {"KEEL_CUDA_HOST_CAPABILITY=75", 2, "and this build has kernels for 80 only"}}) {
    const Ended ended = keel(common + environment.substr(0, environment.find('=')), ranks, environment);
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(reason));
    EXPECT_THAT(ended.output, HasSubstr("on cpu"));
  }
  const Ended none = keel(common + "none", 1, "KEEL_CUDA_HOST_DEVICES=0");
  EXPECT_EQ(none.code, 0) << none.output;
  EXPECT_THAT(none.output, ::testing::Not(HasSubstr("device: auto")));
}

TEST_F(DeviceRuns, AGpuThatTheBuildHasNoKernelsForIsRefused) {
  const Ended ended = keel("train device.yaml name=old device=cuda", 2, "KEEL_CUDA_HOST_CAPABILITY=75");
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("build with -DKEEL_CUDA_ARCHITECTURES=75"));
}

TEST_F(DeviceRuns, EvaluatesAndWrites) {
  ASSERT_EQ(keel("train device.yaml name=run device=cuda train.steps=3").code, 0);
  const Ended loss = keel("eval " + checkpoint("run", 3) + " --sequences 4");
  ASSERT_EQ(loss.code, 0) << loss.output;
  EXPECT_THAT(loss.output, HasSubstr(fmt::format("loss {:.4f}", metric("run", "valid_loss").back())));
  const Ended text = keel("generate " + checkpoint("run", 3) + " --prompt the --tokens 3 --temperature 0");
  EXPECT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("the"));
}

}  // namespace
}  // namespace keel::testing
