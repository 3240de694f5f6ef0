// keel doctor: what this machine and this build offer, and what they cost.
#include "framework/base/build_config.h"
#include "framework/base/text.h"
#include "framework/comm/nccl.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/ops/matmul/product_rate.h"
#include "framework/tensor/gpu_architectures.h"
#include "launch/common/commands.h"
#include "launch/common/environment.h"

namespace keel {
namespace {

void print_gpus() {
  if (!KEEL_HAS_CUDA) {
    fmt::print("cuda      not in this build: configure with the preset cuda for GPUs\n");
    return;
  }
  fmt::print("cuda      {}; {}\n", KEEL_CUDA_COMPILER, cuda::cuda_versions());
  const int count = cuda::gpu_count();
  for (int i = 0; i < count; ++i) {
    const Gpu gpu = cuda::describe_gpu(i);
    fmt::print("          cuda:{} {}, {}, compute capability {}.{}\n", i, gpu.name,
               human_bytes(double(gpu.memory_bytes)), gpu.capability_major, gpu.capability_minor);
    if (const std::string missing = missing_kernels(gpu, KEEL_CUDA_COMPILER); !missing.empty())
      fmt::print("          {}\n", missing);
  }
  if (const std::string driver = cuda::old_driver(); !driver.empty())
    fmt::print("          {}\n", driver);
  else if (count == 0)
    fmt::print("          no device is visible: is there a driver, and what is CUDA_VISIBLE_DEVICES?\n");
  fmt::print("nccl      {}\n", comm::nccl_versions());
}

void run(comm::World& world) {
  const double fp32 = ops::measure_product_rate(DType::f32, {.size = 1024, .seconds = 0.5}),
               bf16 = ops::measure_product_rate(DType::bf16, {.size = 1024, .seconds = 0.5});
  if (world.rank() != 0) return;
  fmt::print("keel      {} ({}), {}, {}\n", KEEL_VERSION, KEEL_COMMIT, KEEL_COMPILER, KEEL_BUILD_TYPE);
  fmt::print("cpu       {}; {}\n", cpu_model(), cpu_features());
  fmt::print("ranks     {} ({} on this host), {} threads each\n", world.size(), world.local_size(), world.threads());
  fmt::print("mpi       {}, with threads\n", mpi_version());
  fmt::print("hdf5      {}\n", hdf5_version());
  fmt::print("products  {}\n", ops::product_backend());
  fmt::print("          fp32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s on this rank\n", fp32 / 1e9, bf16 / 1e9);
  if (!ops::bf16_products_are_native())
    fmt::print(
        "          precision bf16 runs as fp32 products of rounded values here, at {:.0f}% of the speed of precision\n"
        "          fp32, and saves memory only\n",
        100 * bf16 / fp32);
  print_gpus();
}

}  // namespace

void add_doctor(CLI::App& program, comm::World& world) {
  program.add_subcommand("doctor", "What this machine and this build offer")->callback([&world] { run(world); });
}

}  // namespace keel
