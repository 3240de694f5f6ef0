// What an ablation consists of: one cell for each arm, point of the grid and seed. A cell is a run like any other, in
// DIRECTORY/cells/NAME.
#pragma once

#include "framework/io/jsonl.h"
#include "framework/lab/ablate_config.h"

namespace keel::lab {

struct Axis {
  std::string key;
  std::vector<std::string> values;  // as YAML
};

struct Cell {
  std::string name;  // "rms-lr1e-2-seed1"
  std::string arm;
  std::vector<std::string> values;  // one per axis
  int64_t seed = 0;
  config::Node root;  // its config, unresolved; not part of ablation.json
};

// A key whose resolved value is another one in an arm than in the baseline.
struct KeyDifference {
  std::string key, baseline, arm;
};

struct Arm {
  std::string name;
  std::vector<KeyDifference> differences;
};

struct Plan {
  std::string name, baseline;
  std::vector<Arm> arms;  // the baseline first, then as written
  std::vector<Axis> axes;
  std::vector<int64_t> seeds;
  bool stop_lost = false;
  std::vector<Cell> cells;  // by seed, then grid, then arm: what is compared runs close together

  const Arm& arm(const std::string& name) const;
  // The place of a key among the axes; -1 where it is none.
  int axis(const std::string& key) const;
};

// From a whole config with its section `ablate`; cells are kept in `directory`. Differences of arms are not filled in.
Plan make_plan(const config::Node& root, const std::string& name, const std::string& directory);

// Every leaf of two resolved configs that differs, `name`, `seed`, `log` and `ablate` left out.
std::vector<KeyDifference> differing_keys(const config::Node& baseline, const config::Node& arm);
// Those of another point of the grid, to those of points before: each key once, with all its values.
void add_differences(std::vector<KeyDifference>& known, const std::vector<KeyDifference>& others);

// For ablation.json, without configs.
io::Json to_json(const Plan& plan);
Plan plan_from_json(const io::Json& json);

// The cells meant by patterns: numbers from 1, ranges of them ("3-8"), names with * and ?. Empty: all. An input error
// where a pattern means none. Returns indices, ascending.
std::vector<size_t> chosen_cells(const Plan& plan, std::span<const std::string> patterns);

}  // namespace keel::lab
