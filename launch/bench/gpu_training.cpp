#include "launch/bench/gpu_training.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/base/rng.h"
#include "framework/lab/statistics.h"
#include "framework/tensor/gpu.h"
#include "launch/bench/bench_step.h"

namespace keel {
namespace {

using nlohmann::json;

constexpr const char* kNames[3] = {"loss", "gradient_norm", "update_norm"};

FullConfig config_of(const TrainedShape& s, Device device) {
  return parse_full_config(fmt::format(R"(
name: {}
precision: bf16
device: {}
model:
  {{kind: decoder, hidden: {}, layers: {}, ffn: {}, vocab: {}, tie_embeddings: {},
   attention: {{heads: {}, qk_norm: {{kind: rms}}}}}}
data: {{train: none, sequence_length: {}}}
batch: {{sequences: {}, micro_sequences: {}}}
train: {{steps: 1}}
)",
                                       s.name, device.kind == DeviceKind::cuda ? "cuda" : "cpu", s.hidden, s.layers,
                                       s.ffn, s.vocabulary, s.tied, s.heads, s.length, s.sequences, s.sequences),
                           s.name, {});
}

struct Trained {
  std::vector<std::array<double, 3>> steps;  // kNames
  uint64_t weights = 0;                      // a hash of what products read
  double usual_seconds = 0, tokens = 0;      // of a step
  int64_t planned_bytes = 0, used_bytes = 0;
  models::ModelCost cost = {};
};

Trained take_steps(const TrainedShape& shape, int64_t steps, Device device, bool graphs) {
  const auto free_bytes = [&] { return device.kind == DeviceKind::cuda ? cuda::free_memory_bytes(device.index) : 0; };
  Trained trained;
  const int64_t free_before = free_bytes();
  const auto self = comm::make_self_communicator();
  BenchedStep step(*self, config_of(shape, device), device, graphs);
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) {
    const bool telemetry = i % 10 == 0;
    const double taken = step.run(telemetry).total();
    if (!telemetry && i > 2) seconds.push_back(taken);  // the first sizes workspaces, another one records
    const train::StepReport& report = step.report();
    trained.steps.push_back({report.loss, report.gradient_norm, report.update_norm});
  }
  trained.used_bytes = free_before - free_bytes();
  trained.planned_bytes = step.planned_bytes();
  for (const nn::Parameter& parameter : step.decoder.parameters().all()) {
    const HostTensor host(parameter.compute);
    const ConstTensor values = host.tensor();
    trained.weights = key_of(trained.weights, {static_cast<const char*>(values.data()),
                                               size_t(values.elements() * bytes_of(values.dtype()))});
  }
  trained.usual_seconds = lab::median(seconds);
  trained.tokens = step.tokens();
  trained.cost = step.decoder.cost(shape.length);
  return trained;
}

}  // namespace

void compare_with_cpu(json& result, const TrainedShape& shape, Device device) {
  constexpr int64_t kSteps = 5;
  constexpr double kTolerance = 2e-2;
  const Trained here = take_steps(shape, kSteps, {}, false), there = take_steps(shape, kSteps, device, true);
  std::string differ;
  for (size_t i = 0; i < 3; ++i)
    for (size_t step = 0; step < size_t(kSteps); ++step) {
      const double cpu = here.steps[step][i], gpu = there.steps[step][i];
      result[kNames[i]].push_back({{"cpu", cpu}, {"gpu", gpu}});
      if (!(std::abs(gpu - cpu) <= kTolerance * std::abs(cpu)))
        differ += fmt::format("; {} of step {} is {} on the GPU, {} on the CPU", kNames[i], step + 1, gpu, cpu);
    }
  if (!differ.empty()) throw Error(ErrorKind::internal, differ.substr(2));
}

void train_there(json& result, const TrainedShape& shape, int64_t steps, double product_rate, Device device) {
  const Trained trained = take_steps(shape, steps, device, true);
  const double first = trained.steps.front()[0], last = trained.steps.back()[0];
  const double rate = trained.tokens / trained.usual_seconds;
  result = {{"parameters", trained.cost.parameters},
            {"steps", steps},
            {"first_loss", first},
            {"last_loss", last},
            {"step_seconds", trained.usual_seconds},
            {"tokens_per_second", rate},
            {"target_tokens_per_second", shape.target_tokens_per_second},
            {"planned_bytes", trained.planned_bytes},
            {"used_bytes", trained.used_bytes}};
  if (product_rate > 0) result["share_of_product_rate"] = trained.cost.operations_causal() * rate / product_rate;
  if (shape.both_ways) {
    const Trained plain = take_steps(shape, steps, device, false);
    result["tokens_per_second_without_graphs"] = plain.tokens / plain.usual_seconds;
    const auto differs = std::ranges::mismatch(trained.steps, plain.steps).in1 - trained.steps.begin();
    if (differs < steps)
      throw Error(ErrorKind::internal, fmt::format("graphs change bits from step {} on", differs + 1));
    if (trained.weights != plain.weights) throw Error(ErrorKind::internal, "graphs change the last step's weights");
  }
  if (!(last < first))
    throw Error(ErrorKind::internal,
                fmt::format("the loss went from {} to {} over {} steps on the same tokens", first, last, steps));
}

}  // namespace keel
