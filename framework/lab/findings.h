// What an ablation showed, in words.
#pragma once

#include "framework/lab/ablation.h"

namespace keel::lab {

// What was shown, and what was not: two sentences that follow from the numbers.
struct Findings {
  std::string shown, not_shown;
};
Findings findings(const Ablation& ablation);

}  // namespace keel::lab
