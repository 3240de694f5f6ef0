// Works through the cells of an ablation: one after another, or side by side on groups of the ranks. Groups, and other
// processes with the same ablation, take the next cell that nobody has (io::RunLock).
#pragma once

#include <filesystem>

#include "framework/base/clock.h"
#include "framework/io/files.h"
#include "launch/ablate/ablation_cells.h"
#include "launch/train/training.h"

namespace keel {

struct AblationOptions {
  std::vector<size_t> cells;  // indices into the plan, in the order to run
  int groups = 1;             // of equal size
  bool alone = true;          // nobody else works at these cells, so locks are not needed
  double limit_seconds = 0;   // for all of it; 0: none
};

// What became of a cell that was taken, as exit codes; the larger one counts for the whole.
enum class Attempt { finished = 0, failed = 1, stopped = 4 };

class AblationRun {
 public:
  // Both outlive this.
  AblationRun(comm::World& world, const AblationCells& cells, AblationOptions options);

  // Collective over the world. The exit code: 0; 1 where a cell failed; 4 where a signal or the limit came before the
  // last cell.
  int run();

 private:
  std::string folder_of(size_t index) const;
  std::optional<std::filesystem::file_time_type> failed_at(size_t index) const;
  bool is_finished(size_t index) const;
  bool is_waiting(size_t index) const;
  std::string claim();
  Attempt run_cell(comm::World& parent, size_t index);
  std::optional<lab::CellResult> train(comm::World& group, size_t index);
  double bigram_loss(comm::World& group, const FullConfig& config);
  double seconds_left(comm::World& group) const;
  void remove_checkpoints(size_t index) const;
  void show_step(size_t index, const train::StepReport& report);
  void say(const std::string& line);
  std::string name_of(size_t index) const;
  std::string eta(double part_of_cell) const;

  comm::World& world_;
  const AblationCells& cells_;
  AblationOptions options_;
  std::map<size_t, std::optional<std::filesystem::file_time_type>> old_failures_;  // when this began
  std::optional<io::RunLock> lock_;              // of the cell at hand, on the group's first rank
  size_t done_ = 0;                              // cells that this group has run
  size_t waiting_ = 0;                           // cells without a result, the one at hand included
  bool speaker_ = false;                         // leads its group
  bool live_ = false;                            // shows a line that changes
  std::map<std::string, double> bigram_losses_;  // by data
  Clock::time_point begin_ = Clock::now();
};

}  // namespace keel
