// bf16 copies of fp32 weights whose mean over updates is the weight: each is one of its two neighbours in bf16, the
// upper one with the probability of its distance from the lower one (Gupta et al. 2015). Which one is a function of
// (key, updates, index in the logical tensor) by a counter-based generator (base/rng.h), so it is the same at every
// layout, on every device and after a resume.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct StochasticRounding {
  uint64_t key = 0;     // of the seed and the parameter
  ConstTensor updates;  // [1] int64: made before the one at hand
  ConstTensor gate;     // [2] fp32: whether that one is made (update_gate.h)
  // Element i here is element i / run * stride + offset + i % run of the logical tensor.
  int64_t run = 1, stride = 1, offset = 0;
};

// y (bf16) = x (fp32), of one shape, contiguous. Where no update is made, x gives the copies that are there already.
// What bf16 holds exactly, infinities and NaN stay what they are.
void round_stochastically(Tensor y, ConstTensor x, const StochasticRounding& rounding);

}  // namespace keel::ops
