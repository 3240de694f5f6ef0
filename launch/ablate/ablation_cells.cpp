#include "launch/ablate/ablation_cells.h"

#include <filesystem>
#include <set>

#include "framework/config/format.h"
#include "launch/train/train_options.h"

namespace keel {
namespace {

using config::Node;

// The resolved config with what `auto` comes to, so that a learned scale that follows from QK-Norm is seen.
Node with_effective_values(const FullConfig& config) {
  const std::string scale = "model.attention.logit_scale.";
  return config::to_node(config.run)
      .with(scale + "kind", config::Format<nn::LogitScaleKind>::write(config.model.scale_kind(0)))
      .with(scale + "init", Node::make_text(fmt::format("{:.6g}", config.model.initial_scale(0))));
}

FullConfig read_cell(const Node& root) {
  FullConfig config = read_full_config(root);
  check_qk_clip(config);
  check_fallbacks(config);
  if (!config.run.data.valid) throw root["data"].error("keel ablate compares held-out losses: give data.valid");
  return config;
}

// The first change that makes another cell of it; "" where there is none.
std::string change_since(const std::string& stored, const FullConfig& now) {
  try {
    const std::vector<std::string> changes = changes_since(stored_run(stored), now);
    if (!changes.empty()) return changes[0];
  } catch (const Error& error) {
    return error.what();
  }
  // A run may go on with other evaluations, and from moved files; a result may not.
  const Node before = config::parse(stored, "the cell's config"), after = config::to_node(now.run);
  for (const char* key : {"eval.sequences", "data.valid", "data.train"}) {
    const std::string was = config::print_line(before.find(key)), is = config::print_line(after.find(key));
    if (was != is) return fmt::format("{}: {} -> {}", key, was, is);
  }
  return "";
}

// At every point of the grid: what an axis sets may be what an arm differs in, or hide it.
void find_differences(AblationCells& cells) {
  const size_t arms = cells.plan.arms.size();  // cells go by seed, then point, then arm
  const size_t of_one_seed = cells.plan.cells.size() / cells.plan.seeds.size();
  for (size_t first = 0; first < of_one_seed; first += arms) {
    const Node baseline = with_effective_values(cells.configs[first]);
    for (size_t i = 1; i < arms; ++i)
      lab::add_differences(cells.plan.arms[i].differences,
                           lab::differing_keys(baseline, with_effective_values(cells.configs[first + i])));
  }
}

// Whether the cell would go on from what it has.
bool has_checkpoints(const std::string& folder) {
  std::error_code absent;
  return std::filesystem::exists(folder + "/checkpoints") &&
         !std::filesystem::is_empty(folder + "/checkpoints", absent);
}

// A run keeps its config with the fallbacks that it took; one that was killed may not have come to keep the last.
std::string change_of_begun(const std::string& stored, const FullConfig& now) {
  const std::string change = change_since(stored, now);
  for (size_t taken = 1; taken <= now.run.stability.fallbacks.size(); ++taken)
    if (change_since(stored, with_fallback(now, int64_t(taken))).empty()) return "";
  return change;
}

// What finished cells had in common, and that each of them is still a cell.
void check_plan(const AblationCells& cells, const lab::Ablation& stored) {
  if (stored.finished() > 0 && stored.plan.stop_lost != cells.plan.stop_lost)
    throw input_error(
        "ablate.stop.lost: {} -> {}; but {} cells in {} are finished: choose another name for the ablation",
        stored.plan.stop_lost, cells.plan.stop_lost, stored.finished(), cells.directory);
  std::set<std::string> names;
  for (const lab::Cell& cell : cells.plan.cells) names.insert(cell.name);
  for (size_t i = 0; i < stored.results.size(); ++i)
    if (stored.results[i] && !names.contains(stored.plan.cells[i].name))
      throw input_error(
          "{} is finished, and no cell of this config: name its arm, values and seed, too (--only runs some cells), or "
          "choose another name for the ablation",
          lab::cell_directory(cells.directory, stored.plan.cells[i]));
}

}  // namespace

AblationCells read_cells(const Node& root, const std::string& name) {
  const Node own_name = root["name"], folder = root["log"]["directory"];
  AblationCells cells;
  const std::string chosen = own_name.empty() ? name : own_name.text();
  cells.directory = (folder.empty() ? config::LogConfig{}.directory : folder.text()) + "/" + chosen;
  cells.plan = lab::make_plan(root, chosen, cells.directory);
  for (const lab::Cell& cell : cells.plan.cells) cells.configs.push_back(read_cell(cell.root));
  find_differences(cells);
  return cells;
}

void check_layouts(const AblationCells& cells, std::span<const size_t> chosen, int ranks) {
  for (size_t index : chosen) {
    layout_for(cells.configs[index], ranks);
    check_fallbacks(cells.configs[index], ranks);
  }
}

void check_stored(const AblationCells& cells) {
  if (lab::is_ablation(cells.directory)) check_plan(cells, lab::read_ablation(cells.directory));
  for (size_t i = 0; i < cells.configs.size(); ++i) {
    const std::string folder = lab::cell_directory(cells.directory, cells.plan.cells[i]);
    const auto result = lab::read_result(folder);
    if (!std::filesystem::exists(folder + "/config.yaml") || (!result && !has_checkpoints(folder))) continue;
    const std::string stored = config::read_text(folder + "/config.yaml");
    const std::string change = result ? change_since(stored, with_fallback(cells.configs[i], result->fallbacks))
                                      : change_of_begun(stored, cells.configs[i]);
    if (!change.empty())
      throw input_error("{}; but {} {}: choose another name for the ablation, or remove that folder", change, folder,
                        result ? "is finished" : "has begun");
  }
}

}  // namespace keel
