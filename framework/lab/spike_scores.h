// How spiky a run was, as others report it (QKNORM.md section 6): of its loss and of its gradient norm, 7 deviations of
// 1,000 steps and 6 of 128. Every attempted step counts, skipped ones too.
#pragma once

#include "framework/lab/run_record.h"

namespace keel::lab {

// Shares of the judged steps; not a number where no step was judged.
struct SpikeScores {
  double loss_7 = 0, loss_6 = 0, gradient_7 = 0, gradient_6 = 0;
};
SpikeScores spike_scores(std::span<const StepRecord> steps);

// "0.0123", or "-" for what is not a number.
std::string text_of_share(double share);

}  // namespace keel::lab
