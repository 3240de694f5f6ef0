// In the steady state a step of training allocates nothing: every operator new of the process is counted, except
// oneDNN's own small objects, which each of its executions makes.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "framework/data/token_writer.h"
#include "framework/train/stability_hook.h"
#include "framework/train/trainer.h"
#include "tests/models/decoder/decoder_case.h"
#include "tests/support/folder.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

bool is_of_onednn(void* caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname && std::strstr(info.dli_fname, "libdnnl");
}

void* counted(size_t size_bytes, void* caller) {
  if (counting && !is_of_onednn(caller)) ++allocations;
  if (void* memory = std::malloc(size_bytes ? size_bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Not inline: their return address is that of the caller, and half of a pair inlined looks like a mistake to a
// compiler.
[[gnu::noinline]] void* operator new(size_t size_bytes) {
  return counted(size_bytes, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](size_t size_bytes) {
  return counted(size_bytes, __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace keel::testing {
namespace {

// Counts from the end of one step to the end of another.
struct CountingHook : train::Hook {
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override {
    if (report.step == 4) allocations = 0;
    counting = report.step >= 4 && report.step < 9;
    return {};
  }
};

class Allocations : public ::testing::TestWithParam<DType> {};

TEST_P(Allocations, NoneInTheSteadyState) {
  const auto world = comm::make_mpi_communicator(MPI_COMM_WORLD);
  TemporaryFolder folder;
  data::TokenWriter writer(folder / "tokens", 50);
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * i % 50);
  writer.append(ids);
  writer.end_document();
  writer.finish();
  const data::Dataset dataset({{folder / "tokens"}}, {.T = 16, .vocabulary = 50, .document_mask = true});
  const data::SampleOrder order = dataset.training_order(1);

  parallel::Mesh mesh(*world, world->size() == 4 ? 2 : 1);
  parallel::TensorParallel group(mesh.tensor());
  // Full scope and QK-clip: the small sums and factors count too. A telemetry step is among those counted.
  models::Decoder decoder(
      models::read_decoder_config(config::parse("{kind: decoder, preset: olmo2, recompute: attention, vocab: 50, "
                                                "hidden: 32, layers: 2, ffn: 48, attention: {heads: "
                                                "4, kv_heads: 4}}",
                                                "test")));
  decoder.allocate({.parameters = {.activation = GetParam(),
                                   .tensor = mesh.tensor_position(),
                                   .data_ranks = mesh.data().size(),
                                   .bucket_elements = 4096},
                    .group = &group,
                    .batch = {2, 16}});
  decoder.parameters().initialise(1);
  train::StepBatches batches(dataset, {2, 16, 2}, true);
  train::Trainer trainer(decoder, mesh, batches, order,
                         {.schedule = {.peak = 1e-3, .total_steps = 10},
                          .clip_norm = 1,
                          .qk_clip_tau = 0.01,
                          .total_steps = 10,
                          .telemetry_every = 6});
  train::StabilityHook stability({});
  CountingHook count;
  trainer.add(stability);
  trainer.add(count);
  trainer.weights_changed();
  trainer.run();
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(trainer.progress().updates, 10);
}

INSTANTIATE_TEST_SUITE_P(Types, Allocations, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace keel::testing
