// What an ablation showed, in words.
#pragma once

#include "framework/lab/ablation.h"

namespace keel::lab {

// What was shown, and what was not: sentences that follow from the numbers, short at any number of arms.
struct Findings {
  std::string shown, not_shown;
};
Findings findings(const Ablation& ablation);

}  // namespace keel::lab
