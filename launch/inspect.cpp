#include "launch/inspect.h"

#include <nlohmann/json.hpp>

#include "checkpoints/reader.h"
#include "framework/base/text.h"
#include "framework/io/io_thread.h"

namespace keel {
namespace {

struct Arguments {
  std::string checkpoint;
  bool json = false, verify = false, config = false;
};

uint64_t elements(const checkpoints::StoredTensor& tensor) {
  uint64_t product = 1;
  for (uint64_t size : tensor.shape) product *= size;
  return product;
}

void print_json(const checkpoints::Contents& contents) {
  const checkpoints::RunState& state = contents.state;
  nlohmann::ordered_json parameters;
  for (const auto& tensor : contents.parameters) parameters[tensor.name] = tensor.shape;
  const nlohmann::ordered_json out = {{"step", state.progress.step},
                                      {"updates", state.progress.updates},
                                      {"tokens_consumed", state.progress.tokens_consumed},
                                      {"samples_consumed", state.progress.samples.consumed()},
                                      {"weights_only", state.weights_only},
                                      {"qk_norm", state.qk_norm},
                                      {"bytes", contents.file_bytes},
                                      {"parameters", parameters},
                                      {"environment", nlohmann::ordered_json::parse(state.environment, nullptr, false)},
                                      {"config", state.config}};
  fmt::print("{}\n", out.dump(2));
}

void print_table(const checkpoints::Contents& contents) {
  const checkpoints::RunState& state = contents.state;
  uint64_t sum = 0;
  for (const auto& tensor : contents.parameters) {
    fmt::print("  {:<48} [{}]\n", tensor.name, fmt::join(tensor.shape, ", "));
    sum += elements(tensor);
  }
  fmt::print("step {}, {} updates, {} tokens, {} samples\n", state.progress.step, state.progress.updates,
             state.progress.tokens_consumed, state.progress.samples.consumed());
  fmt::print("QK-Norm: {}\n", state.qk_norm);
  fmt::print("{} tensors, {} parameters{}, {}\n", contents.parameters.size(), human_count(double(sum)),
             state.weights_only ? " (weights only)" : " with both moments", human_bytes(double(contents.file_bytes)));
}

void run(const Arguments& arguments) {
  io::IoThread io;
  const checkpoints::Contents contents = checkpoints::read_contents(io, arguments.checkpoint);
  if (arguments.config) return fmt::print("{}", contents.state.config);
  arguments.json ? print_json(contents) : print_table(contents);
  if (!arguments.verify) return;
  checkpoints::verify_tensors(io, arguments.checkpoint, [](double) {});
  fmt::print(stderr, "every byte of {} is as it was written\n", arguments.checkpoint);
}

}  // namespace

void add_inspect(CLI::App& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("inspect", "What a checkpoint holds");
  command->add_option("checkpoint", arguments->checkpoint, "step-NNNNNNNN.h5")->required();
  command->add_flag("--json", arguments->json, "For programs");
  command->add_flag("--verify", arguments->verify, "Read everything and compare every checksum");
  command->add_flag("--config", arguments->config, "Print the config that the run was made with");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace keel
