// One training run: what `keel train` does, and `keel ablate` for each cell.
#pragma once

#include <functional>

#include "framework/comm/world.h"
#include "framework/train/step_report.h"
#include "launch/common/run_setup.h"

namespace keel {

// What a caller of several runs adds to each.
struct RunAdditions {
  bool quiet = false;                                   // no lines of its own; the caller speaks
  bool claimed = false;                                 // the caller holds the lock of the run's folder
  std::optional<double> lost_above;                     // ends the run once it is lost; the bigram's held-out loss
  std::function<void(const train::StepReport&)> watch;  // sees every step, on every rank
};

// Collective over the world. Goes on where the run's folder holds a checkpoint. Ends done, unstable or saved early.
train::Ending run_training(comm::World& world, FullConfig config, const RunAdditions& additions = {});
int exit_code_of(train::Outcome outcome);  // 0 done, 3 unstable, 4 saved early

}  // namespace keel
