// keel inspect CKPT
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoints/reader.h"
#include "framework/base/text.h"
#include "framework/io/hdf5.h"
#include "framework/io/io_thread.h"
#include "launch/common/commands.h"
#include "launch/common/run_setup.h"
#include "models/decoder/bounds.h"

namespace keel {
namespace {

struct Arguments {
  std::string checkpoint;
  bool json = false, verify = false, bounds = false, config = false;
};

// [layers][H]; a layer that nothing bounds has none.
using Bounds = std::vector<std::vector<double>>;

Bounds bounds_of(io::IoThread& io, const std::string& path, const checkpoints::Contents& contents) {
  std::vector<std::string> names;
  for (const auto& tensor : contents.parameters)
    for (const char* end : {".q_norm.weight", ".k_norm.weight", ".logit_scale.weight"})
      if (tensor.name.ends_with(end)) names.push_back(tensor.name);
  const auto weights = checkpoints::read_weights(io, path, names);
  const auto values = [&](int64_t layer, const char* name) {
    const auto found = weights.find(fmt::format("blocks.{}.attention.{}.weight", layer, name));
    return found == weights.end() ? std::vector<float>() : found->second;
  };
  const models::DecoderConfig model = parse_full_config(contents.state.config, path, {}).model;
  Bounds bounds;
  for (int64_t layer = 0; layer < model.layers; ++layer)
    bounds.push_back(models::logit_bounds(
        model, layer, {values(layer, "q_norm"), values(layer, "k_norm"), values(layer, "logit_scale")}));
  return bounds;
}

void print_bounds(const Bounds& bounds) {
  fmt::print("largest |logit| that gains and scales allow, by layer and head, before soft-cap and rounding:\n");
  for (size_t layer = 0; layer < bounds.size(); ++layer)
    fmt::print("  layer {:<3} {}\n", layer,
               bounds[layer].empty() ? "no bound: no QK-Norm" : fmt::format("{:.6g}", fmt::join(bounds[layer], " ")));
}

void print_json(const checkpoints::Contents& contents, const std::optional<Bounds>& bounds) {
  const checkpoints::RunState& state = contents.state;
  nlohmann::ordered_json parameters;
  for (const auto& tensor : contents.parameters) parameters[tensor.name] = tensor.shape;
  nlohmann::ordered_json out = {{"step", state.progress.step},
                                {"updates", state.progress.updates},
                                {"tokens_consumed", state.progress.tokens_consumed},
                                {"samples_consumed", state.progress.samples.consumed()},
                                {"weights_only", state.weights_only},
                                {"qk_norm", state.qk_norm},
                                {"parts", contents.parts},
                                {"bytes", contents.bytes},
                                {"parameters", parameters},
                                {"environment", nlohmann::ordered_json::parse(state.environment, nullptr, false)},
                                {"config", state.config}};
  if (bounds) out["bounds"] = *bounds;
  fmt::print("{}\n", out.dump(2));
}

void print_table(const checkpoints::Contents& contents) {
  const checkpoints::RunState& state = contents.state;
  uint64_t sum = 0;
  for (const auto& tensor : contents.parameters) {
    fmt::print("  {:<48} [{}]\n", tensor.name, fmt::join(tensor.shape, ", "));
    sum += io::elements_of(tensor.shape);
  }
  fmt::print("step {}, {} updates, {} tokens, {} samples\n", state.progress.step, state.progress.updates,
             state.progress.tokens_consumed, state.progress.samples.consumed());
  fmt::print("QK-Norm: {}\n", state.qk_norm);
  fmt::print("{} tensors, {} parameters{}, {}\n", contents.parameters.size(), human_count(double(sum)),
             state.weights_only ? " (weights only)" : " with both moments", human_bytes(double(contents.bytes)));
  if (contents.parts > 0) fmt::print("in {} parts\n", contents.parts);
}

void print(const Arguments& arguments, const checkpoints::Contents& contents, io::IoThread& io) {
  if (arguments.config) return fmt::print("{}", contents.state.config);
  std::optional<Bounds> bounds;
  if (arguments.bounds) bounds = bounds_of(io, arguments.checkpoint, contents);
  if (arguments.json) return print_json(contents, bounds);
  print_table(contents);
  if (bounds) print_bounds(*bounds);
}

void run(const Arguments& arguments) {
  io::IoThread io;
  print(arguments, checkpoints::read_contents(io, arguments.checkpoint), io);
  if (!arguments.verify) return;
  const bool terminal = isatty(STDERR_FILENO) == 1;
  checkpoints::verify_tensors(io, arguments.checkpoint, [&](double share) {
    if (terminal) fmt::print(stderr, "\rchecked {:.0f}%{}", 100 * share, share < 1 ? "" : "\n");
  });
  fmt::print(stderr, "every byte of {} is as it was written\n", arguments.checkpoint);
}

}  // namespace

void add_inspect(CLI::App& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("inspect", "What a checkpoint holds");
  command->add_option("checkpoint", arguments->checkpoint, "step-NNNNNNNN.h5")->required();
  command->add_flag("--json", arguments->json, "For programs");
  command->add_flag("--verify", arguments->verify, "Read everything and compare every checksum");
  command->add_flag("--bounds", arguments->bounds, "The bound on each head's logits that QK-Norm guarantees");
  command->add_flag("--config", arguments->config, "Print the config that the run was made with, and nothing else")
      ->excludes("--json", "--bounds");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace keel
