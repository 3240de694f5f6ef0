// keel train CONFIG [key=value...]
#include "launch/common/commands.h"
#include "launch/common/same_config.h"
#include "launch/train/stop_signal.h"
#include "launch/train/train_options.h"
#include "launch/train/training.h"

namespace keel {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  bool print_config = false;
};

int run(const Arguments& arguments, comm::World& world) {
  require_same_config(world, arguments.config);
  // Rank 0 reads and checks the file; the others are told what it resolved to. Rank 0 speaks, so it keeps the places
  // where the user wrote.
  config::Node written;
  const std::string text = world.on_rank_0([&] {
    const FullConfig config = read_full_config(arguments.config, arguments.overrides);
    if (!arguments.print_config) layout_for(config, world.size());
    check_qk_clip(config);
    check_fallbacks(config, arguments.print_config ? 0 : world.size());
    written = config.run.source;
    return config.text();
  });
  if (arguments.print_config) {
    if (world.rank() == 0) fmt::print("{}", text);
    return 0;
  }
  catch_signals();
  const config::Node resolved = config::parse(text, arguments.config);
  const FullConfig config = read_full_config(world.rank() == 0 ? resolved.at_places_of(written) : resolved);
  return exit_code_of(run_training(world, config).outcome);
}

}  // namespace

void add_train(CLI::App& program, comm::World& world, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("train", "Train a model, or go on with a run that stopped");
  command->add_option("config", arguments->config, "A YAML file; configs/README.md lists every key")->required();
  command->add_option("overrides", arguments->overrides,
                      "key.path=value, laid over the file, such as optimizer.lr=1e-3");
  command->add_flag("--print-config", arguments->print_config, "Print the resolved config and stop");
  command->callback([arguments, &world, &exit_code] { exit_code = run(*arguments, world); });
}

}  // namespace keel
