// The CPU twin of sample_sums.h; arguments are checked already.
#pragma once

#include "framework/ops/sample_sums.h"

namespace keel::ops::cpu {

void add_moments(Tensor sums, ConstTensor x, float outlier);
void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& sample);

}  // namespace keel::ops::cpu
