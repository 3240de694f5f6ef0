// gpu_check: what launch/gpu-check.sh runs on a machine with a GPU, without MPI and HDF5: products, single passes, and
// training steps of two models on random tokens, as JSON.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "framework/io/files.h"
#include "framework/lab/statistics.h"
#include "framework/ops/product_rate.h"
#include "framework/tensor/gpu.h"
#include "launch/bench/bench_step.h"
#include "launch/bench/gpu_passes.h"

namespace keel {
namespace {

using nlohmann::json;

struct Arguments {
  std::string out = "gpu-check.json", tests;
  bool small = false;
  int64_t steps = 50;
};

struct Shape {
  const char* name;
  int64_t hidden, layers, heads, ffn, vocabulary, length, sequences;
  bool tied;
  double target_tokens_per_second;  // on an H200; 0 = none
};

constexpr Shape kShapes[] = {{"124M", 768, 12, 12, 2048, 50304, 1024, 32, true, 470e3},
                             {"1B", 2048, 18, 16, 5632, 50304, 4096, 4, false, 55e3}};
constexpr Shape kSmall[] = {{"small", 64, 2, 2, 96, 512, 32, 2, true, 0}};

FullConfig config_of(const Shape& s) {
  return parse_full_config(
      fmt::format(R"(
name: {}
precision: bf16
device: cuda
model:
  {{kind: decoder, hidden: {}, layers: {}, ffn: {}, vocab: {}, tie_embeddings: {},
   attention: {{heads: {}, qk_norm: {{kind: rms}}}}}}
data: {{train: none, sequence_length: {}}}
batch: {{sequences: {}, micro_sequences: {}}}
train: {{steps: 1}}
)",
                  s.name, s.hidden, s.layers, s.ffn, s.vocabulary, s.tied, s.heads, s.length, s.sequences, s.sequences),
      s.name, {});
}

// The same random tokens at each step, so the loss must fall.
json train(const Shape& shape, int64_t steps, double product_rate, Device device) {
  const auto self = comm::make_self_communicator();
  BenchedStep step(*self, config_of(shape), device);
  step.run(false);
  const double first = step.loss();
  std::vector<double> seconds;
  for (int64_t i = 1; i < steps; ++i) seconds.push_back(step.run(false).total());
  const double usual = lab::median(seconds), last = step.loss(), rate = step.tokens() / usual;
  const models::ModelCost cost = step.decoder.cost(shape.length);
  const double operations = cost.operations_causal();
  if (!(last < first))
    throw Error(ErrorKind::internal, fmt::format("{}: the loss went from {} to {} over {} steps on the "
                                                 "same tokens",
                                                 shape.name, first, last, steps));
  return {{"parameters", cost.parameters},
          {"steps", steps},
          {"first_loss", first},
          {"last_loss", last},
          {"step_seconds", usual},
          {"tokens_per_second", rate},
          {"target_tokens_per_second", shape.target_tokens_per_second},
          {"share_of_product_rate", operations * rate / product_rate},
          {"planned_bytes", step.state_bytes() + step.decoder.activation_bytes()}};
}

json passes(Device device, bool small) {
  json table = json::object();
  for (const PassTime& pass : time_passes(device, small)) {
    table[pass.name] = {{"microseconds", 1e6 * pass.seconds}, {"least_bytes", pass.bytes}};
    table[pass.name]["gigabytes_per_second"] = 1e-9 * pass.bytes / pass.seconds;
    if (pass.operations > 0) table[pass.name]["tflops"] = 1e-12 * pass.operations / pass.seconds;
    if (pass.target_seconds > 0) table[pass.name]["target_microseconds"] = 1e6 * pass.target_seconds;
  }
  return table;
}

// Lines "name exit-code seconds" of the script that ran them.
json test_results(const std::string& path) {
  json results = json::object();
  std::ifstream file(path);
  std::string name;
  int code = 0;
  for (double seconds = 0; file >> name >> code >> seconds;)
    results[name] = {{"exit_code", code}, {"seconds", seconds}};
  return results;
}

void run(const Arguments& arguments) {
  if (cuda::gpu_count() == 0) throw input_error("no GPU is visible: is there a driver (nvidia-smi)?");
  const Device device{DeviceKind::cuda, 0};
  const Gpu gpu = cuda::describe_gpu(0);
  json report = {{"gpu", gpu.name}, {"memory_bytes", gpu.memory_bytes}, {"versions", cuda::cuda_versions()}};
  if (!arguments.tests.empty()) report["tests"] = test_results(arguments.tests);
  const double rate = ops::measure_product_rate(DType::bf16, {.device = device});
  report["product_tflops"] = 1e-12 * rate;
  report["passes"] = passes(device, arguments.small);
  auto write = [&] { io::write_file(arguments.out, report.dump(2) + "\n"); };
  write();
  for (const Shape& shape : arguments.small ? std::span<const Shape>(kSmall) : std::span<const Shape>(kShapes)) {
    report["training"][shape.name] = train(shape, arguments.steps, rate, device);
    write();  // what is known so far outlives a failure
  }
  std::cout << report.dump(2) << std::endl;
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  keel::Arguments arguments;
  CLI::App program("Measures Keel on the first GPU and writes JSON");
  program.add_option("--out", arguments.out, "Where the JSON goes")->capture_default_str();
  program.add_option("--tests", arguments.tests, "Results of tests to put in: lines of name, exit code, seconds");
  program.add_option("--steps", arguments.steps, "Training steps of each model")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str();
  program.add_flag("--small", arguments.small, "Small sizes, for the stand-in");
  CLI11_PARSE(program, argc, argv);
  try {
    keel::run(arguments);
  } catch (const keel::Error& error) {
    std::cerr << "gpu_check: " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << "gpu_check: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
