#include "launch/convert/convert.h"

#include <filesystem>

#include "framework/base/error.h"
#include "launch/common/commands.h"
#include "launch/convert/retrofit.h"

namespace keel {
namespace {

bool is_checkpoint(const std::string& path) {
  return path.ends_with(".h5");
}

struct Arguments {
  ConvertOptions convert;
  RetrofitOptions retrofit;
  bool fold = false;
};

void run(Arguments& arguments, comm::World& world) {
  const ConvertOptions& options = arguments.convert;
  world.do_on_rank_0([&] {
    if (is_checkpoint(options.to) && std::filesystem::exists(options.to))
      throw input_error("{} exists: give another name, or remove it first", options.to);
  });
  arguments.retrofit.from = options.from;
  arguments.retrofit.to = options.to;
  if (!arguments.retrofit.change.empty() || arguments.fold) {
    if (!is_checkpoint(options.from) || !is_checkpoint(options.to))
      throw input_error("{} to {}: --retrofit and --fold go from one checkpoint (.h5) to another", options.from,
                        options.to);
    return arguments.fold ? fold_scale(options.from, options.to, world) : retrofit(arguments.retrofit, world);
  }
  if (is_checkpoint(options.from) == is_checkpoint(options.to))
    throw input_error("{} to {}: one of the two must be a checkpoint (.h5), the other a folder of transformers",
                      options.from, options.to);
  is_checkpoint(options.from) ? export_model(options, world) : import_model(options, world);
}

void add_retrofit_options(CLI::App& command, Arguments& arguments) {
  command.add_option("--retrofit", arguments.retrofit.change,
                     "qk_norm=rms puts QK-Norm into a model trained without it, calibrated on text");
  command.add_option("--data", arguments.retrofit.data, "Token files to calibrate on (default: data.valid of the run)");
  command.add_option("--sequences", arguments.retrofit.sequences, "How many sequences of them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--tensor", arguments.retrofit.tensor, "Ranks that share the heads of a model too large for one")
      ->check(CLI::PositiveNumber);
  command.add_flag("!--uncalibrated", arguments.retrofit.calibrate, "Leave gains and scales as a new model has them");
  command.add_flag("--fold", arguments.fold, "Take a learned logit scale into the q gains, 1 + w into w");
}

}  // namespace

void add_convert(CLI::App& program, comm::World& world) {
  auto arguments = std::make_shared<Arguments>();
  ConvertOptions* options = &arguments->convert;
  CLI::App* command =
      program.add_subcommand("convert", "Import a model of Hugging Face transformers, or export to one");
  command->add_option("from", options->from, "A folder with config.json and .safetensors files, or a checkpoint")
      ->required();
  command->add_option("to", options->to, "The checkpoint to write (.h5), or a folder")->required();
  command->add_option("--type", options->type, "Type of exported weights: fp32, bf16 or fp16")->capture_default_str();
  const std::map<std::string, RotaryPairs> pairs = {{"halves", RotaryPairs::halves},
                                                    {"interleaved", RotaryPairs::interleaved}};
  command
      ->add_option("--rotary", options->rotary,
                   "How the other side pairs rotated features: halves (i, i + d/2), as transformers does, or "
                   "interleaved (2i, 2i + 1)")
      ->transform(CLI::CheckedTransformer(pairs));
  command->add_flag("--allow-unexpected", options->allow_unexpected,
                    "Leave out tensors that the model has no place for");
  command->add_option("--file-bytes", options->file_bytes, "Largest exported file; more weights make several")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_retrofit_options(*command, *arguments);
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
