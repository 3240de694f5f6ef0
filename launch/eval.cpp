// keel eval CKPT [--data PREFIX] [key=value...]
#include "framework/train/evaluation.h"
#include "launch/common/commands.h"
#include "launch/common/loaded_model.h"

namespace keel {
namespace {

struct Arguments {
  std::string checkpoint, data;
  std::vector<std::string> overrides;
  int64_t sequences = 0;
  int tensor = 1;
};

void run(const Arguments& arguments, comm::World& world) {
  // First, since weights may take long to load.
  const data::Dataset dataset =
      open_validation_data(stored_config(world, arguments.checkpoint, arguments.overrides), arguments.data);
  LoadedModel model(world,
                    {.path = arguments.checkpoint, .overrides = arguments.overrides, .tensor = arguments.tensor});
  train::Evaluation evaluation(dataset, model.sizes, model.config.run.data.document_mask, arguments.sequences,
                               model.device);
  const train::EvaluationResult result = *evaluation.run(model.decoder, model.mesh);
  if (world.rank() != 0) return;
  fmt::print("step {}: loss {:.4f} nats per token", model.step, result.loss);
  if (result.nats_per_byte > 0) fmt::print(", {:.4f} nats per byte", result.nats_per_byte);
  fmt::print(" over {} tokens ({:.1f} s)\n", result.counted_tokens, result.seconds);
}

}  // namespace

void add_eval(CLI::App& program, comm::World& world) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("eval", "Loss of a checkpoint on held-out text");
  command->add_option("checkpoint", arguments->checkpoint, "step-NNNNNNNN.h5")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, laid over the checkpoint's config");
  command->add_option("--data", arguments->data, "Prefix of the token files (default: data.valid of the run)");
  command->add_option("--sequences", arguments->sequences, "How many of them, from the first on (default: all)")
      ->check(CLI::PositiveNumber);
  command->add_option("--tensor", arguments->tensor, "Ranks that share the heads of a model too large for one")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
