// The CPU twin of head_gains.h; arguments are checked already.
#pragma once

#include "framework/ops/qk_norm/head_gains.h"

namespace keel::ops::cpu {

void head_gains(const HeadGains& gains, const HeadGainWeights& weights);

}  // namespace keel::ops::cpu
