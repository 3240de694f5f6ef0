// The report of an ablation: how the arms compare, and what that shows.
#pragma once

#include "framework/lab/ablation.h"
#include "framework/lab/html.h"

namespace keel::lab {

// Reads the runs of finished cells for curves over steps. `config` is shown as it is.
Page ablation_report(const Ablation& ablation, const std::string& config);

}  // namespace keel::lab
