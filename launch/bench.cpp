// keel bench: how fast a training step is on this machine, as shares of what its products reach in the same run.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "framework/base/rng.h"
#include "framework/base/text.h"
#include "framework/ops/product_rate.h"
#include "framework/parallel/data_parallel.h"
#include "framework/tensor/dispatch.h"
#include "launch/commands.h"
#include "launch/run_setup.h"

namespace keel {
namespace {

struct Arguments {
  std::string config, shape = "S", precision = "bf16";
  std::vector<std::string> overrides;
  int64_t steps = 8;
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

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct StepSeconds {
  double forward = 0;  // with the loss and its gradient
  double backward = 0, reduction = 0, update = 0;
  double total() const { return forward + backward + reduction + update; }
};

// A model with random tokens, stepped without data files or hooks.
class BenchedStep {
 public:
  BenchedStep(comm::World& world, const FullConfig& config)
      : config_(config),
        layout_(config::check_layout(config.run, world.size())),
        sizes_(batch_sizes(config, layout_)),
        mesh_(world.all(), int(layout_.tensor)),
        group_(mesh_.tensor()),
        decoder(config.model) {
    decoder.allocate(decoder_layout(config, mesh_, group_, {sizes_.micro_sequences, sizes_.length}, true));
    decoder.parameters().initialise(1);
    decoder.refresh();
    reducer_.emplace(decoder.parameters(), mesh_, config.run.parallel.zero);
    optimizer_.emplace(decoder.parameters(), reducer_->update_spans(), optim::AdamwOptions{});
    const Shape shape = {sizes_.micro_sequences, sizes_.length};
    for (OwnedTensor* ids : {&tokens_, &targets_, &positions_}) *ids = OwnedTensor(shape, DType::i32);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      tokens_.tensor.as<int32_t>()[i] = int32_t(uniform(1, uint64_t(i)) * double(config.model.vocab.value()));
      targets_.tensor.as<int32_t>()[i] = int32_t(uniform(2, uint64_t(i)) * double(config.model.vocab.value()));
      positions_.tensor.as<int32_t>()[i] = int32_t(i % sizes_.length);
    }
  }

  StepSeconds run(bool telemetry) {
    StepSeconds seconds;
    decoder.parameters().zero_gradients();
    decoder.begin_step();
    for (int64_t micro = 0; micro < sizes_.micro_steps; ++micro)
      forward_backward(seconds, telemetry, micro + 1 == sizes_.micro_steps);
    double begin = now();
    reducer_->finish_gradients();
    const double norm = reducer_->gradient_norm();
    seconds.reduction = now() - begin;
    begin = now();
    optimizer_->step({.lr = 3e-4, .decay = 3e-5, .gradient_scale = std::min(1.0, 1 / norm), .updates = ++updates_});
    reducer_->publish_weights(false);
    decoder.refresh();
    seconds.update = now() - begin;
    return seconds;
  }

  double tokens() const { return double(config_.run.batch.sequences * sizes_.length); }
  const train::BatchSizes& sizes() const { return sizes_; }
  int64_t arena_bytes() {
    int64_t bytes = 0;
    for (nn::ParameterArena& arena : decoder.parameters().arenas())
      bytes += arena.elements * (arena.compute_dtype == DType::f32 ? 8 : 10);
    for (const optim::Span& span : optimizer_->spans()) bytes += 8 * span.size();
    return bytes;
  }

 private:
  // Backward begins where the gradients after the last block are complete.
  void forward_backward(StepSeconds& seconds, bool telemetry, bool last) {
    const double begin = now();
    double middle = 0;
    nn::StepOptions options{
        .factor = float(1 / tokens()), .loss = {}, .telemetry = telemetry, .gradients_complete = {}};
    options.gradients_complete = [&](size_t first) {
      if (middle == 0) middle = now();
      if (last) reducer_->gradients_complete(first);
    };
    decoder.forward_backward({tokens_, targets_, positions_, {}}, options);
    seconds.forward += middle - begin;
    seconds.backward += now() - middle;
  }

  FullConfig config_;
  config::Layout layout_;
  train::BatchSizes sizes_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;

 public:
  models::Decoder decoder;

 private:
  std::optional<parallel::DataParallel> reducer_;
  std::optional<optim::Adamw> optimizer_;
  OwnedTensor tokens_, targets_, positions_;
  int64_t updates_ = 0;
};

// Seconds of the fused QK-Norm + RoPE pass of one micro-batch and layer, forward and backward.
double qk_pass_seconds(const FullConfig& config, const train::BatchSizes& sizes, ops::QkNormKind kind) {
  const DType type = activation_type(config);
  const int64_t n = sizes.rows() / sizes.micro_steps * sizes.length, H = config.model.attention.heads,
                G = config.model.kv_heads(), d = config.model.head_dim();
  ops::QkNormRopeOptions options{
      .heads = H, .kv_heads = G, .head_dim = d, .rotated = config.model.rotated_features(), .kind = kind};
  OwnedTensor qkv({n, (H + 2 * G) * d}, type), q({n, H, d}, type), k({n, G, d}, type),
      d_qkv({n, (H + 2 * G) * d}, type);
  OwnedTensor weight({d}, DType::f32), d_q({d}, DType::f32), d_k({d}, DType::f32),
      rope({sizes.length, options.rotated}, DType::f32), positions({n}, DType::i32);
  ops::rope_table(rope, 1e4);
  for (int64_t i = 0; i < n; ++i) positions.tensor.as<int32_t>()[i] = int32_t(i % sizes.length);
  dispatch_float(type, [&]<class T>() {
    for (int64_t i = 0; i < qkv.tensor.elements(); ++i) qkv.tensor.as<T>()[i] = T(float(uniform(3, uint64_t(i)) - 0.5));
  });
  const bool gains = kind != ops::QkNormKind::none;
  ops::QkNormRopeInputs inputs{qkv, gains ? weight.tensor : Tensor(), gains ? weight.tensor : Tensor(), rope,
                               positions};
  std::vector<double> seconds;
  for (int i = 0; i < 15; ++i) {
    const double begin = now();
    ops::qk_norm_rope_forward(q, k, inputs, {}, options);
    ops::qk_norm_rope_backward({d_qkv, gains ? d_q.tensor : Tensor(), gains ? d_k.tensor : Tensor()}, q, k, inputs, {},
                               {}, options);
    seconds.push_back(now() - begin);
  }
  return median(seconds);
}

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) * 1024;
}

void print_rates(const char* when, DType type, double rate) {
  fmt::print("products {}: {} 2048^3, packed weights: {:.1f} GFLOP/s\n", when, name_of(type), rate / 1e9);
}

void print_memory(BenchedStep& step, int64_t peak) {
  const int64_t planned = step.arena_bytes() + step.decoder.packed_bytes() + step.decoder.activation_bytes();
  fmt::print(
      "memory: weights, gradients, moments {}, packed weights {}, activations {}: planned {}; peak of the process {}\n",
      human_bytes(double(step.arena_bytes())), human_bytes(double(step.decoder.packed_bytes())),
      human_bytes(double(step.decoder.activation_bytes())), human_bytes(double(planned)), human_bytes(double(peak)));
}

void run(const Arguments& arguments, comm::World& world) {
  const FullConfig config =
      arguments.config.empty()
          ? parse_full_config(shape_text(arguments), "shape " + arguments.shape, arguments.overrides)
          : read_full_config(arguments.config, arguments.overrides);
  const DType type = activation_type(config);
  const bool speaker = world.rank() == 0;
  const double before = comm::all_reduce_value(world.all(), ops::measure_product_rate(type, 2048, 1));
  BenchedStep step(world, config);
  for (int i = 0; i < 2; ++i) step.run(false);

  std::array<std::vector<double>, 2> totals;  // without and with telemetry, in turn
  std::array<std::vector<double>, 4> phases;
  for (int64_t i = 0; i < arguments.steps; ++i)
    for (bool telemetry : {false, true}) {
      const StepSeconds s = step.run(telemetry);
      totals[telemetry].push_back(s.total());
      if (telemetry) continue;
      const double parts[] = {s.forward, s.backward, s.reduction, s.update};
      for (int p = 0; p < 4; ++p) phases[size_t(p)].push_back(parts[p]);
    }
  const int64_t peak = peak_bytes();
  const double after = comm::all_reduce_value(world.all(), ops::measure_product_rate(type, 2048, 1));
  const double normed = qk_pass_seconds(config, step.sizes(), config.model.attention.qk_norm.kind),
               plain = qk_pass_seconds(config, step.sizes(), ops::QkNormKind::none);
  if (!speaker) return;

  const double seconds = median(totals[0]), rate = (before + after) / 2;
  const nn::ModelCost cost = step.decoder.cost(step.sizes().length);
  const double products = 6.0 * double(cost.product_parameters), tokens_per_second = step.tokens() / seconds;
  print_rates("before", type, before);
  print_rates("after ", type, after);
  if (std::abs(before - after) > 0.05 * rate)
    fmt::print("  they differ by over 5%: the machine was not quiet, and this run should not count\n");
  fmt::print(
      "step: {:.1f} ms (min {:.1f}, max {:.1f}), {:.0f} tokens/s, MFU {:.1f}% causal (6N + 6LHdT), {:.1f}% full (6N + "
      "12LHdT)\n",
      1e3 * seconds, 1e3 * *std::min_element(totals[0].begin(), totals[0].end()),
      1e3 * *std::max_element(totals[0].begin(), totals[0].end()), tokens_per_second,
      100 * (products + cost.attention_operations / 2) * tokens_per_second / rate,
      100 * (products + cost.attention_operations) * tokens_per_second / rate);
  const char* names[] = {"forward and loss", "backward", "reduction and norm", "optimizer and packing"};
  for (int p = 0; p < 4; ++p)
    fmt::print("  {:<22} {:7.2f} ms  {:4.1f}%\n", names[p], 1e3 * median(phases[size_t(p)]),
               100 * median(phases[size_t(p)]) / seconds);
  const double layers = double(config.model.layers * step.sizes().micro_steps);
  fmt::print("QK-Norm: {:.2f}% of the step (fused pass {:.3f} ms against {:.3f} ms without the norm, per layer)\n",
             100 * layers * (normed - plain) / seconds, 1e3 * normed, 1e3 * plain);
  fmt::print("telemetry on every step: {:+.2f}% (alternating whole steps)\n", 100 * (median(totals[1]) / seconds - 1));
  print_memory(step, peak);
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
  command->add_option("--steps", arguments->steps, "Steps with and without telemetry, in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
