// keel ablate CONFIG [key=value...] [--list] [--only CELL...] [--groups N]
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "framework/base/log.h"
#include "framework/io/files.h"
#include "launch/ablate/ablation_run.h"
#include "launch/common/commands.h"
#include "launch/common/same_config.h"
#include "launch/train/stop_signal.h"

namespace keel {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides, only;
  int groups = 1;
  bool list = false;
};

std::string in_words(const lab::Ablation& ablation, size_t index) {
  if (const auto& result = ablation.results[index])
    return fmt::format("{:<8} loss {:<8.4f} largest logit {:<9.4g} {}", lab::name_of(result->end), result->valid_loss,
                       result->largest_logit, result->lost);
  return fmt::format("{:<8} {}", lab::name_of(ablation.state(index)), ablation.failures[index]);
}

void list(const AblationCells& cells, const std::vector<size_t>& chosen) {
  const lab::Plan& plan = cells.plan;
  const lab::Ablation ablation = lab::collect(cells.directory, plan);
  fmt::print("{}: {} cells = {} arms", plan.name, plan.cells.size(), plan.arms.size());
  for (const lab::Axis& axis : plan.axes) fmt::print(" x {} {}", axis.values.size(), axis.key);
  fmt::print(" x {} seeds, {} finished, in {}\n", plan.seeds.size(), ablation.finished(), cells.directory);
  for (const lab::Arm& arm : plan.arms) {
    fmt::print("arm {}{}\n", arm.name, arm.name == plan.baseline ? ": the baseline" : "");
    for (const lab::KeyDifference& d : arm.differences) fmt::print("    {}: {} -> {}\n", d.key, d.baseline, d.arm);
  }
  for (size_t index : chosen)
    fmt::print("{:>4} {:<40} {}\n", index + 1, plan.cells[index].name, in_words(ablation, index));
}

void prepare_directory(const AblationCells& cells, const std::string& text) {
  check_stored(cells);
  io::create_directories(cells.directory);
  io::write_file(cells.directory + "/config.yaml", text);
  io::write_file(cells.directory + "/ablation.json", lab::to_json(cells.plan).dump(2) + "\n");
}

// A function of the cells' files, so that nothing is lost where they cannot be written.
void write_tables(const AblationCells& cells) {
  try {
    io::IoThread io;
    lab::write_tables(io, cells.directory, cells.plan);
  } catch (const std::exception& error) {
    log::warning("tables are not up to date, keel report {} writes them: {}", cells.directory, error.what());
  }
}

void tell_end(const AblationCells& cells, int exit_code) {
  const lab::Ablation ablation = lab::collect(cells.directory, cells.plan);
  if (ablation.finished() + ablation.failed() > 0) write_tables(cells);
  const auto lost = std::count_if(ablation.results.begin(), ablation.results.end(),
                                  [](const auto& result) { return result && !result->lost.empty(); });
  log::info("{} of {} cells finished, {} lost, {} failed{}; keel report {}", ablation.finished(),
            ablation.results.size(), lost, ablation.failed(), exit_code != 0 ? "; the same command goes on" : "",
            cells.directory);
}

int run(const Arguments& arguments, comm::World& world) {
  require_same_config(world, arguments.config);
  const std::string stem = std::filesystem::path(arguments.config).stem().string();
  // Rank 0 reads and checks everything, with the file's lines at hand for errors.
  const std::string text = world.on_rank_0([&] {
    const config::Node root = config::load(arguments.config, arguments.overrides);
    const AblationCells cells = read_cells(root, stem);
    const std::string text = config::print(root);
    if (arguments.list) return text;
    if (world.size() % arguments.groups != 0)
      throw input_error("--groups {}: {} ranks do not divide into as many groups", arguments.groups, world.size());
    check_layouts(cells, lab::chosen_cells(cells.plan, arguments.only), world.size() / arguments.groups);
    prepare_directory(cells, text);
    return text;
  });
  const config::Node root = config::parse(text, arguments.config);
  const AblationCells cells = read_cells(root, stem);
  const std::vector<size_t> chosen = lab::chosen_cells(cells.plan, arguments.only);
  if (arguments.list) {
    if (world.rank() == 0) list(cells, chosen);
    return 0;
  }
  catch_signals();
  const auto& limit = cells.configs[0].run.train.stop_after;
  const bool alone = arguments.groups == 1 && std::getenv("SLURM_ARRAY_TASK_ID") == nullptr;
  AblationRun ablation(world, cells, {chosen, arguments.groups, alone, limit ? double(limit->count()) : 0});
  const int exit_code = ablation.run();
  if (world.rank() == 0) tell_end(cells, exit_code);
  return exit_code;
}

}  // namespace

void add_ablate(CLI::App& program, comm::World& world, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("ablate", "Run the grid of arms, values and seeds of a config's `ablate`");
  command->add_option("config", arguments->config, "A YAML file with a section `ablate`; configs/README.md")
      ->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, laid over the file");
  command->add_flag("--list", arguments->list, "Show the cells, what each arm changes, and how far they are");
  command->add_option("--only", arguments->only, "Cells by number (3 or 3-8) or name (rms-*), separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--groups", arguments->groups, "Run as many cells side by side, each on its share of the ranks")
      ->check(CLI::PositiveNumber);
  command->callback([arguments, &world, &exit_code] { exit_code = run(*arguments, world); });
}

}  // namespace keel
