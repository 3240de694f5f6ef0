// From a config with a section `ablate` to its cells, each with a config that has been read and checked.
#pragma once

#include "framework/lab/ablation.h"
#include "launch/common/run_setup.h"

namespace keel {

struct AblationCells {
  lab::Plan plan;
  std::vector<FullConfig> configs;  // one per cell
  std::string directory;
};

// Throws where any cell's config is wrong, at the key that is. `name` is used where the config has none.
AblationCells read_cells(const config::Node& root, const std::string& name);

// Throws where one of these cells cannot be laid out on as many ranks.
void check_layouts(const AblationCells& cells, std::span<const size_t> chosen, int ranks);

// Throws where a cell was finished, or begun, with other keys than it has now, or a finished one is no longer part of
// the ablation: results of two configs never mix, and none is dropped unsaid.
void check_stored(const AblationCells& cells);

}  // namespace keel
