// keel generate CKPT --prompt TEXT [key=value...]
#include <algorithm>

#include "framework/io/files.h"
#include "launch/common/commands.h"
#include "launch/common/loaded_model.h"
#include "launch/common/run_tokenizer.h"
#include "launch/common/sampling.h"
#include "launch/generate/compare_text.h"

namespace keel {
namespace {

struct Arguments {
  std::string checkpoint, prompt, compare;
  std::vector<std::string> overrides;
  Sampling sampling;
};

void run(const Arguments& arguments, comm::World& world) {
  if (!(arguments.sampling.temperature >= 0))  // NaN, too
    throw input_error("--temperature {}: must be a number of at least 0", arguments.sampling.temperature);
  LoadedModel model(
      world, {.path = arguments.checkpoint, .overrides = arguments.overrides, .tensor = world.size(), .sequences = 1});
  const auto tokenizer = tokenizer_of_run(model.config, arguments.checkpoint);
  const Writer writer{model.decoder, model.group,        *tokenizer,
                      model.device,  model.sizes.length, model.config.run.data.special_ids.eos};
  const std::string text = write_on(writer, arguments.prompt, arguments.sampling);
  if (world.rank() != 0) return;
  fmt::print("{}{}\n", arguments.prompt, text);
  if (arguments.compare.empty()) return;
  const TextComparison c = compare_text(text, io::read_file(arguments.compare, uint64_t(1) << 36));
  fmt::print(stderr,
             "keel: {} of {} words ({:.0f}%) occur in {}; the longest run of it that is copied has {} bytes: \"{}\"\n",
             c.known_words, c.words, 100.0 * double(c.known_words) / double(std::max<int64_t>(1, c.words)),
             arguments.compare, c.longest_copy.size(), c.longest_copy);
}

}  // namespace

void add_generate(CLI::App& program, comm::World& world) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("generate", "Write text with a checkpoint");
  command->add_option("checkpoint", arguments->checkpoint, "step-NNNNNNNN.h5")->required();
  command->add_option("overrides", arguments->overrides,
                      "key.path=value, laid over the checkpoint's config, such as data.tokenizer=x.json");
  command->add_option("--prompt", arguments->prompt, "The text to go on from");
  command->add_option("--tokens", arguments->sampling.tokens, "How many tokens at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", arguments->sampling.temperature, "0 takes the likeliest token")
      ->capture_default_str();
  command->add_option("--top", arguments->sampling.top, "Draw from this many likeliest tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--compare", arguments->compare,
                      "Say how many words of the text occur in this file, and what was copied from it");
  command->add_option("--seed", arguments->sampling.seed, "The same seed writes the same text")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
