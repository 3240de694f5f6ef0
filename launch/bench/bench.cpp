// keel bench: how fast a training step is on this machine, as shares of what its products reach in the same run.
#include <algorithm>
#include <array>

#include "framework/base/process.h"
#include "framework/base/text.h"
#include "framework/lab/statistics.h"
#include "framework/ops/matmul/product_rate.h"
#include "launch/bench/bench_passes.h"
#include "launch/common/choose_device.h"
#include "launch/common/commands.h"
#include "launch/common/environment.h"
#include "launch/common/same_config.h"

namespace keel {
namespace {

struct Arguments {
  std::string config, shape = "S", precision = "bf16";
  std::vector<std::string> overrides;
  int64_t steps = 5;
};

// The two shapes that README's table speaks of, and the peer script's defaults.
std::string shape_text(const Arguments& arguments) {
  const bool small = arguments.shape == "S";
  if (!small && arguments.shape != "M") throw input_error("--shape {}: S or M", arguments.shape);
  constexpr const char* format = R"(
name: bench
precision: {}
model:
  {{kind: decoder, hidden: {}, layers: {}, ffn: {}, vocab: {}, attention: {{heads: {}, head_dim: 64,
    qk_norm: {{kind: rms, weight: shared}}, logit_scale: {{kind: fixed}}}}}}
data: {{train: none, sequence_length: {}}}
batch: {{sequences: {}}}
train: {{steps: 1}}
)";
  return small ? fmt::format(format, arguments.precision, 384, 6, 1024, 8192, 6, 256, 8)
               : fmt::format(format, arguments.precision, 768, 12, 2048, 32000, 12, 512, 2);
}

ops::ProductRateOptions product_options(Device device) {
  return {.size = device.kind == DeviceKind::cuda ? 0 : 2048, .device = device};
}

double product_rate(comm::World& world, DType type, Device device) {
  return comm::all_reduce_value(world.all(), ops::measure_product_rate(type, product_options(device)));
}

void print_rate(const char* when, DType type, Device device, double rate) {
  const int64_t size = product_options(device).size;
  fmt::print("products {}: {} {}, packed weights: {:.1f} GFLOP/s\n", when, name_of(type),
             size > 0 ? fmt::format("{}^3", size) : "of up to 8192^3", rate / 1e9);
}

struct Timings {
  std::vector<double> totals;
  std::array<std::vector<double>, 4> phases;
};

Timings time_steps(BenchedStep& step, int64_t steps) {
  Timings timings;
  for (int64_t i = 0; i < steps; ++i) {
    const train::PhaseSeconds s = step.run(false);
    timings.totals.push_back(s.total());
    const double parts[] = {s.forward, s.backward, s.reduction, s.update};
    for (size_t p = 0; p < 4; ++p) timings.phases[p].push_back(parts[p]);
  }
  return timings;
}

void print_step(const BenchedStep& step, const Timings& timings, double rate) {
  const models::ModelCost cost = step.decoder.cost(step.sizes().length);
  const double seconds = lab::median(timings.totals), tokens_per_second = step.tokens() / seconds;
  const auto [least, most] = std::minmax_element(timings.totals.begin(), timings.totals.end());
  fmt::print(
      "step: {:.1f} ms (min {:.1f}, max {:.1f}), {:.0f} tokens/s, MFU {:.1f}% causal (6N + 6LHdT), {:.1f}% full (6N + "
      "12LHdT)\n",
      1e3 * seconds, 1e3 * *least, 1e3 * *most, tokens_per_second,
      100 * cost.operations_causal() * tokens_per_second / rate,
      100 * cost.operations_full() * tokens_per_second / rate);
  const char* names[] = {"forward and loss", "backward", "reduction and norm", "optimizer and packing"};
  for (size_t p = 0; p < 4; ++p)
    fmt::print("  {:<22} {:7.2f} ms  {:4.1f}%\n", names[p], 1e3 * lab::median(timings.phases[p]),
               100 * lab::median(timings.phases[p]) / seconds);
}

void print_memory(const BenchedStep& step, int64_t libraries, int64_t peak) {
  const int64_t planned = step.planned_bytes(), packed = step.decoder.packed_bytes();
  const int64_t activations = step.decoder.activation_bytes();
  fmt::print(
      "memory: weights, gradients, moments {}, packed weights {}, activations {}: planned {}; peak of the process {}, "
      "of which {} before there was a model\n",
      human_bytes(double(planned - packed - activations)), human_bytes(double(packed)),
      human_bytes(double(activations)), human_bytes(double(planned)), human_bytes(double(peak)),
      human_bytes(double(libraries)));
}

// What something costs: by its timers, and by whole steps with and without it in turn.
struct Cost {
  const char* what;
  const char* timed;  // what the timers see
  PassSeconds pass;
  std::vector<double> once;         // seconds of a step beside those passes, where there are any
  std::vector<double> differences;  // seconds, one per pair of steps
};

void print_cost(const Cost& cost, double passes, double seconds) {
  const auto [least, most] = std::minmax_element(cost.differences.begin(), cost.differences.end());
  const double once = cost.once.empty() ? 0 : lab::median(cost.once);
  fmt::print("{}: by timers {:.2f}% of the step ({:.3f} ms against {:.3f} ms per layer and micro-step{})\n", cost.what,
             100 * (passes * cost.pass.extra() + once) / seconds, 1e3 * cost.pass.with, 1e3 * cost.pass.without,
             cost.once.empty() ? "" : fmt::format(", {:.3f} ms once", 1e3 * once));
  fmt::print("  timed: {}\n", cost.timed);
  fmt::print("  whole steps with and without, in turn: {:+.2f}% (min {:+.2f}, max {:+.2f})\n",
             100 * lab::median(cost.differences) / seconds, 100 * *least / seconds, 100 * *most / seconds);
}

FullConfig without_qk_norm(FullConfig config) {
  auto& attention = config.model.attention;
  attention.qk_norm.kind = ops::QkNormKind::none;
  attention.qk_norm.scope = ops::QkNormScope::head;
  attention.logit_scale.kind = nn::LogitScaleKind::fixed;
  return config;
}

void print_costs(comm::World& world, BenchedStep& step, BenchedStep& plain, int64_t steps, double seconds) {
  Cost norm{.what = "QK-Norm",
            .timed = "QK-Norm and rotation both ways, of a layer, against rotation alone",
            .pass = qk_norm_pass(step, plain),
            .once = {},
            .differences = {}};
  Cost telemetry{.what = "telemetry on every step",
                 .timed =
                     "of a layer: attention forward with entropies and places, mean squares of q and k, parallel "
                     "pairs, moments and range of the stream, against attention forward alone; once: the hook with "
                     "the gains' gradients, the weights' norms and ranges and its sums over ranks. In whole steps "
                     "alone: what else is summed over ranks",
                 .pass = telemetry_pass(step),
                 .once = {},
                 .differences = {}};
  plain.run(false);
  for (int64_t i = 0; i < steps; ++i) {
    const double usual = step.run(false).total();
    telemetry.differences.push_back(step.run(true).total() - usual);
    telemetry.once.push_back(step.hook_seconds());
    norm.differences.push_back(usual - plain.run(false).total());
  }
  if (world.rank() != 0) return;
  const double passes = double(step.decoder.config().layers * step.sizes().micro_steps);
  print_cost(norm, passes, seconds);
  print_cost(telemetry, passes, seconds);
}

void run(const Arguments& arguments, comm::World& world) {
  if (!arguments.config.empty()) require_same_config(world, arguments.config);
  const FullConfig config =
      arguments.config.empty()
          ? parse_full_config(shape_text(arguments), "shape " + arguments.shape, arguments.overrides)
          : read_full_config(arguments.config, arguments.overrides);
  const DType type = activation_type(config), other = type == DType::f32 ? DType::bf16 : DType::f32;
  const int64_t libraries = peak_resident_bytes();
  const Device device = choose_device(config.run, world);
  const double before = product_rate(world, type, device);
  BenchedStep step(world.all(), config, device);
  for (int i = 0; i < 2; ++i) step.run(false);
  const Timings timings = time_steps(step, arguments.steps);
  const int64_t peak = peak_resident_bytes();
  const double after = product_rate(world, type, device), rate = (before + after) / 2;
  const double other_rate = product_rate(world, other, device);
  if (world.rank() == 0) {
    print_rate("of the other type", other, device, other_rate);
    print_rate("before", type, device, before);
    print_rate("after ", type, device, after);
    if (std::abs(before - after) > 0.05 * rate)
      fmt::print("  they differ by over 5%: the machine was not quiet, and this run should not count\n");
    print_step(step, timings, rate);
    print_memory(step, libraries, peak);
  }
  BenchedStep plain(world.all(), without_qk_norm(config), device);
  print_costs(world, step, plain, arguments.steps, lab::median(timings.totals));
}

}  // namespace

void add_bench(CLI::App& program, comm::World& world) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.add_subcommand("bench", "Speed of a training step, as shares of the machine's product rate");
  command->add_option("overrides", arguments->overrides, "key.path=value, laid over the config");
  command->add_option("--config", arguments->config, "A YAML file (default: the shape)");
  command->add_option("--shape", arguments->shape, "S (hidden 384, 6 layers) or M (768, 12)")->capture_default_str();
  command->add_option("--precision", arguments->precision, "bf16 or fp32")->capture_default_str();
  command
      ->add_option("--steps", arguments->steps,
                   "Steps to time, then as many in turn with telemetry and without QK-Norm")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
