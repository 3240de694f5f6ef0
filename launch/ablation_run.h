// Works through the cells of an ablation: one after another, or side by side on groups of the ranks.
#pragma once

#include <chrono>

#include "launch/ablation_cells.h"
#include "launch/training.h"

namespace keel {

struct AblationOptions {
  std::vector<size_t> cells;  // indices into the plan, in the order to run
  int groups = 1;             // of equal size; cells are dealt to them in turn
  double limit_seconds = 0;   // for all of it; 0: none
};

class AblationRun {
 public:
  // Both outlive this.
  AblationRun(comm::World& world, const AblationCells& cells, AblationOptions options);

  // Collective over the world. The exit code: 0, or 4 where a signal or the limit ended it before the last cell.
  int run();

 private:
  bool run_cell(comm::World& parent, size_t index);
  lab::CellResult train(comm::World& group, const FullConfig& config, double bigram_loss, bool& stopped);
  double bigram_loss(comm::World& group, const FullConfig& config);
  double seconds_left(comm::World& group) const;
  void keep_result(comm::World& group, size_t index, const lab::CellResult& result);
  void remove_checkpoints(size_t index) const;
  void show_step(const lab::Cell& cell, const FullConfig& config, const train::StepReport& report);
  void say(const std::string& line);
  std::string eta(double part_of_cell) const;

  comm::World& world_;
  const AblationCells& cells_;
  AblationOptions options_;
  std::vector<size_t> own_;                      // this group's cells that have not ended
  size_t done_ = 0;                              // of them
  bool speaker_ = false;                         // leads its group
  bool live_ = false;                            // shows a line that changes
  std::map<std::string, double> bigram_losses_;  // by data
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace keel
