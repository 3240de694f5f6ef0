// An ablation on disk:
//
//   DIRECTORY/config.yaml      the config with its section `ablate`
//             ablation.json    the plan: arms and what they change, axes, seeds, cells
//             cells/NAME/      a run per cell; result.json once it has ended, failure.json where it could not run
//             cells.csv        a line per cell that is finished or failed; without failures the same bytes,
//                              however often the ablation was stopped
//             costs.csv        time and memory of each finished cell
//             ablation.h5      all of it, with the curves of loss and largest logit
#pragma once

#include "framework/lab/cell_result.h"
#include "framework/lab/plan.h"

namespace keel::lab {

// A begun cell has a folder: it is at work, or was stopped and goes on. A failed one is tried again.
enum class CellState { waiting, begun, failed, finished };
const char* name_of(CellState state);

struct Ablation {
  std::string directory;
  Plan plan;
  std::vector<std::optional<CellResult>> results;  // one per cell; nothing where it has not ended
  std::vector<std::string> failures;               // one per cell: why it failed when it was last tried, or ""

  CellState state(size_t index) const;
  size_t finished() const;
  size_t failed() const;
};

std::string cell_directory(const std::string& directory, const Cell& cell);

// A result is for good; a failure lasts until the cell is tried again.
std::string result_path(const std::string& cell_directory);
std::string failure_path(const std::string& cell_directory);
void write_result(const std::string& cell_directory, const CellResult& result);
void write_failure(const std::string& cell_directory, const std::string& reason);
std::optional<CellResult> read_result(const std::string& cell_directory);
std::string read_failure(const std::string& cell_directory);  // "" where there is none

// What is there of `plan`.
Ablation collect(const std::string& directory, const Plan& plan);
bool is_ablation(const std::string& directory);
// From DIRECTORY/ablation.json.
Ablation read_ablation(const std::string& directory);

// Writes cells.csv, costs.csv and ablation.h5. Several processes may do so: the last one to end sees every result.
void write_tables(io::IoThread& io, const std::string& directory, const Plan& plan);
std::string cells_csv(const Ablation& ablation);
std::string costs_csv(const Ablation& ablation);

}  // namespace keel::lab
