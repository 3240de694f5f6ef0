// Values for measurements, of the kind that a model has. On equal values GPUs switch fewer transistors, keep a higher
// clock, and read high (Horace He 2024, "Strangely, Matrix Multiplications on GPUs Run Faster When Given 'Predictable'
// Data!").
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"

namespace keel::ops {

// Contiguous x (fp32 or bf16) gets independent normal values, mean 0, variance 1, a function of the seed; they repeat
// after 65,521, a prime, so that rows of powers of two differ.
void fill_normal(Tensor x, uint64_t seed);

}  // namespace keel::ops
