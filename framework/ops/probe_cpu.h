// The CPU twin of probe.h; arguments are checked already.
#pragma once

#include "framework/ops/probe.h"

namespace keel::ops::cpu {

void add_moments(Tensor sums, ConstTensor x, float outlier);
void add_parallel_pairs(Tensor parallel, ConstTensor q, ConstTensor k, int64_t queries, float least);

}  // namespace keel::ops::cpu
