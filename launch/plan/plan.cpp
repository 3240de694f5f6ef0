// keel plan CONFIG: what a run would take, without running it.
#include <algorithm>
#include <memory>

#include "framework/base/text.h"
#include "launch/common/commands.h"
#include "launch/plan/plan_layout.h"

namespace keel {
namespace {

struct Arguments {
  std::string config, device = "cpu";
  std::vector<std::string> overrides;
  int64_t ranks = 0;
};

std::string gib(double bytes) {
  return fmt::format("{:.3f} GiB", bytes / double(int64_t(1) << 30));
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

void print_parameters(const FullConfig& config) {
  models::Decoder decoder(config.model);
  const models::ModelCost cost = decoder.cost(config.run.data.sequence_length);
  int64_t scales = 0;
  for (const nn::Parameter& parameter : decoder.parameters().all())
    if (parameter.spec.name.ends_with("logit_scale.weight")) scales += parameter.spec.shape.elements();
  fmt::print("parameters              {:>18}\n", cost.parameters);
  fmt::print("  QK-Norm weights       {:>18}   {}\n", cost.qk_norm_parameters,
             percent(double(cost.qk_norm_parameters), double(cost.parameters)));
  fmt::print("  logit scales          {:>18}\n", scales);
  fmt::print(
      "operations per token    {:>18.4g}   forward and backward, attention in full (12 H d T a layer, or its window)\n",
      cost.operations_full());
  fmt::print("  causal half           {:>18.4g}\n", cost.operations_causal());
  if (cost.recomputed_operations > 0)
    fmt::print("  computed again        {:>18.4g}   by model.recompute; no MFU counts it\n",
               cost.recomputed_operations);
}

void print_memory(const LayoutPlan& plan, const DeviceSheet& device) {
  const PlannedMemory& m = plan.memory;
  const auto line = [&](const char* what, double bytes) {
    if (bytes > 0) fmt::print("  {:<26}{:>14}   {}\n", what, gib(bytes), percent(bytes, m.total()));
  };
  fmt::print("\nmemory of a rank, tensor {} x data {}, micro-batches of {} of {} sequences\n", plan.tensor, plan.data,
             plan.micro, plan.rows);
  line("weights (fp32)", m.weights);
  line("copies for products", m.copies);
  line("gradients (fp32)", m.gradients);
  line("moments", m.moments);
  line("copy for saves", m.saves);
  line("activations", m.activations);
  line("position tables, token ids", m.tables);
  line("scratch", m.scratch);
  line("program and libraries", m.program);
  fmt::print("  {:<26}{:>14}   of {}\n", "peak", gib(m.total()), gib(device.memory_bytes));
  fmt::print("  one more sequence in a micro-batch takes {}; the largest that fits has {}\n",
             human_bytes(plan.bytes_per_sequence), plan.largest_micro);
}

void print_step(const FullConfig& config, const LayoutPlan& plan, const DeviceSheet& device) {
  const double tokens = double(config.run.tokens_per_step());
  fmt::print("\na step of {} tokens, at best {:.3g} s ({} tokens/s)\n", human_count(tokens), plan.time.total(),
             human_count(tokens / plan.time.total()));
  fmt::print("  products                  {:>10.3g} s   at {:.3g} operations/s\n", plan.time.products,
             device.product_rate(activation_type(config)));
  fmt::print("  memory traffic            {:>10.3g} s   at {}/s\n", plan.time.memory, human_bytes(device.memory_rate));
  fmt::print("  tensor axis               {:>10.3g} s   {} sent by a rank\n", plan.time.tensor,
             human_bytes(plan.tensor_bytes));
  fmt::print("  data axis                 {:>10.3g} s   {} sent by a rank\n", plan.time.data,
             human_bytes(plan.data_bytes));
  fmt::print(
      "assumed: products and memory at the peak rates of {}, one behind the other; attention as its causal half;\n"
      "weights read and activations moved three times per micro-step; ring exchanges, {}/s within a host of {} ranks\n"
      "and {}/s between hosts; tensor exchanges not hidden, data exchanges hidden by two thirds of the computation\n",
      device.name == "cpu" ? "this machine (products measured)" : device.name, human_bytes(device.link_rate),
      device.ranks_per_host, human_bytes(device.network_rate));
}

void print_ranking(const std::vector<LayoutPlan>& plans) {
  fmt::print("\nlayouts, those that fit first, the fastest at the top\n");
  fmt::print("  {:>6} {:>6} {:>7} {:>14} {:>12}\n", "tensor", "data", "micro", "memory", "s/step");
  for (const LayoutPlan& plan : plans) {
    if (!plan.refused.empty())
      fmt::print("  {:>6} {:>6}         {}\n", plan.tensor, plan.data, plan.refused);
    else
      fmt::print("  {:>6} {:>6} {:>7} {:>14} {:>12.3g}{}\n", plan.tensor, plan.data, plan.micro,
                 gib(plan.memory.total()), plan.time.total(), plan.fits() ? "" : "   does not fit");
  }
  if (std::ranges::none_of(plans, &LayoutPlan::fits))
    fmt::print("none fits: more ranks, or model.recompute=attention or block, which keep less of the forward pass\n");
}

std::vector<LayoutPlan> ranked_layouts(const FullConfig& config, const DeviceSheet& device, int64_t ranks) {
  std::vector<LayoutPlan> plans;
  for (int64_t tensor = 1; tensor <= ranks; ++tensor)
    if (ranks % tensor == 0) plans.push_back(plan_layout(config, device, tensor, ranks / tensor));
  const auto key = [](const LayoutPlan& plan) {
    return std::tuple(!plan.refused.empty(), !plan.fits(), plan.refused.empty() ? plan.time.total() : 0);
  };
  std::stable_sort(plans.begin(), plans.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return plans;
}

// The layout that keel train would take; where that is refused and the config says nothing of it, the best one.
LayoutPlan chosen_layout(const FullConfig& config, const std::vector<LayoutPlan>& plans, int64_t ranks) {
  const config::ParallelConfig& parallel = config.run.parallel;
  const auto own = std::ranges::find(plans, parallel.tensor, &LayoutPlan::tensor);
  if (own == plans.end() || parallel.data.value_or(own->data) != own->data)
    config::check_layout(config.run, ranks);  // which says what is wrong
  if (own->refused.empty()) return *own;
  const bool open = parallel.tensor == 1 && parallel.data.is_auto() && plans.front().refused.empty();
  if (!open) throw input_error("{}", own->refused);
  fmt::print("\nas it stands the config is refused: {}\n", own->refused);
  return plans.front();
}

void run(const Arguments& arguments) {
  const FullConfig config = read_full_config(arguments.config, arguments.overrides);
  const int64_t asked = config.run.parallel.tensor * config.run.parallel.data.value_or(1);
  const int64_t ranks = arguments.ranks > 0 ? arguments.ranks : config.run.parallel.ranks.value_or(asked);
  const DeviceSheet device = device_sheet(arguments.device, ranks);
  fmt::print("{} on {} x {}, {}\n\n", config.run.name, ranks, device.name, name_of(activation_type(config)));
  print_parameters(config);
  const std::vector<LayoutPlan> plans = ranked_layouts(config, device, ranks);
  const LayoutPlan chosen = chosen_layout(config, plans, ranks);
  print_memory(chosen, device);
  print_step(config, chosen, device);
  print_ranking(plans);
  if (plans.front().fits() && plans.front().tensor != chosen.tensor)
    fmt::print("the plan above is of tensor {}; parallel.tensor={} would be the fastest that fits\n", chosen.tensor,
               plans.front().tensor);
}

}  // namespace

void add_plan(CLI::App& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("plan", "What a run would take: parameters, memory, exchanges, time");
  command->add_option("config", arguments->config, "A YAML file, as for keel train")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, laid over the file");
  command->add_option("--ranks", arguments->ranks, "How many ranks (default: parallel.ranks, or the config's layout)")
      ->check(CLI::PositiveNumber);
  command->add_option("--device", arguments->device, "b200, gh200, h200, h100, a100, or cpu: this machine")
      ->capture_default_str();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace keel
