// gpu_check: what launch/gpu-check.sh runs on a machine with a GPU, without MPI and HDF5: products, single passes, and
// training steps on random tokens, as JSON.
#include <CLI/CLI.hpp>
#include <iostream>

#include "framework/base/build_config.h"
#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/matmul/product_rate.h"
#include "framework/tensor/gpu_architectures.h"
#include "launch/bench/gpu_passes.h"
#include "launch/bench/gpu_report.h"
#include "launch/bench/gpu_training.h"

namespace keel {
namespace {

struct Arguments {
  std::string out = "gpu-check.json", tests;
  bool small = false, look = false, kernels = false;
  int64_t steps = 50;
  double limit_seconds = 420;
};

constexpr TrainedShape kTrained[] = {{"124M", 768, 12, 12, 2048, 50304, 1024, 32, true, true, 470e3},
                                     {"1B", 2048, 18, 16, 5632, 50304, 4096, 4, false, false, 55e3}};
constexpr TrainedShape kCompared = {"compared", 256, 4, 4, 704, 4096, 256, 4, true, false, 0};
constexpr TrainedShape kSmall[] = {{"small", 64, 2, 2, 96, 512, 32, 2, true, true, 0}};

void add_pass(GpuReport& report, const PassTime& pass) {
  if (!pass.error.empty()) return report.add_error(pass.name, pass.error);
  nlohmann::json& row = report.values["passes"][pass.name];
  row = {{"microseconds", 1e6 * pass.seconds}, {"least_bytes", pass.bytes}};
  row["gigabytes_per_second"] = 1e-9 * pass.bytes / pass.seconds;
  if (pass.operations > 0) row["tflops"] = 1e-12 * pass.operations / pass.seconds;
  if (pass.target_seconds > 0) row["target_microseconds"] = 1e6 * pass.target_seconds;
  report.write();
}

std::vector<ops::cuda::KernelUse> kernels() {
  std::vector<ops::cuda::KernelUse> all = ops::cuda::forward_kernels(), backward = ops::cuda::backward_kernels();
  all.insert(all.end(), backward.begin(), backward.end());
  return all;
}

// How many blocks a multiprocessor holds of the kernels that ask for much shared memory, against what they claim.
void check_occupancy(GpuReport& report, Device device) {
  for (const ops::cuda::KernelUse& use : kernels()) {
    const std::optional<int> found = held_blocks(device, use);
    if (!found) continue;
    report.values["occupancy"].push_back(
        {{"kernel", use.name}, {"shared_bytes", use.shared_bytes}, {"blocks", *found}, {"claimed", use.blocks}});
    if (*found < use.blocks)
      report.add_error(use.name, fmt::format("{} blocks on a multiprocessor, not {}", *found, use.blocks));
  }
}

void measure(GpuReport& report, const Arguments& arguments, Device device) {
  report.part("occupancy", [&] { check_occupancy(report, device); });
  double rate = 0;
  report.part("products", [&] {
    rate = ops::measure_product_rate(DType::bf16, {.device = device});
    report.values["product_tflops"] = 1e-12 * rate;
  });
  for (const Passes& passes : pass_groups(device, arguments.small, [&](const auto& pass) { add_pass(report, pass); }))
    report.part(passes.name, passes.time);
  report.part("beside the CPU", [&] {
    compare_with_cpu(report.values["beside_the_cpu"], arguments.small ? kSmall[0] : kCompared, device);
  });
  for (const TrainedShape& shape : arguments.small ? std::span<const TrainedShape>(kSmall) : kTrained)
    report.part(std::string("training ") + shape.name,
                [&] { train_there(report.values["training"][shape.name], shape, arguments.steps, rate, device); });
}

// An input error where there is none, or none that the kernels run on.
Gpu usable_gpu() {
  if (const std::string driver = cuda::old_driver(); !driver.empty()) throw input_error("{}", driver);
  if (cuda::gpu_count() == 0) throw input_error("no GPU is visible: is there a driver (nvidia-smi)?");
  const Gpu gpu = cuda::describe_gpu(0);
  if (const std::string missing = missing_kernels(gpu, KEEL_CUDA_COMPILER); !missing.empty())
    throw input_error("{}", missing);
  return gpu;
}

int run(const Arguments& arguments) {
  if (arguments.look) {
    const Gpu gpu = usable_gpu();
    fmt::print("{}, compute capability {}.{}, {}\n", gpu.name, gpu.capability_major, gpu.capability_minor,
               cuda::cuda_versions());
    return 0;
  }
  if (arguments.kernels) {
    for (const ops::cuda::KernelUse& use : kernels())
      fmt::print("{} {} {}\n", use.mangled, use.shared_bytes, use.least_total_bytes);
    return 0;
  }
  GpuReport report(arguments.out, arguments.limit_seconds);
  report.write();
  if (!arguments.tests.empty()) report.add_tests(arguments.tests);
  report.part("GPU", [&] {
    const Gpu gpu = usable_gpu();
    report.values.update({{"gpu", gpu.name},
                          {"compute_capability", fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor)},
                          {"memory_bytes", gpu.memory_bytes},
                          {"versions", cuda::cuda_versions()},
                          {"build", KEEL_CUDA_COMPILER}});
  });
  measure(report, arguments, {DeviceKind::cuda, 0});
  std::cout << fmt::format("== {} errors, {} parts left out: {}", report.values["errors"].size(),
                           report.values["left_out"].size(), arguments.out)
            << std::endl;
  return report.good() ? 0 : 1;
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  keel::Arguments arguments;
  CLI::App program("Measures Keel on the first GPU and writes JSON");
  program.add_option("--out", arguments.out, "Where the JSON goes")->capture_default_str();
  program.add_option("--tests", arguments.tests, "Folder with the results of tests that gpu-check.sh has run");
  program.add_option("--steps", arguments.steps, "Training steps of each model")
      ->check(CLI::Range(5, 1000000))
      ->capture_default_str();
  program.add_option("--limit", arguments.limit_seconds, "Seconds after which no other part begins")
      ->capture_default_str();
  program.add_flag("--small", arguments.small, "Small sizes, for the stand-in");
  program.add_flag("--look", arguments.look, "Only say which GPU there is, and whether this build runs on it");
  program.add_flag(
      "--kernels", arguments.kernels,
      "Only say what kernels ask for: part of the name, shared bytes of a block, of a multiprocessor at least");
  CLI11_PARSE(program, argc, argv);
  try {
    return keel::run(arguments);
  } catch (const keel::Error& error) {
    std::cerr << "!! gpu_check: " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << "!! gpu_check: " << error.what() << "\n";
    return 1;
  }
}
