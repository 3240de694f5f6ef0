// Cosines and sines of rotary positions, which qk_norm_rope.h applies.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// RoPE frequency scaling as the families publish it (QKNORM.md section 2).
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;   // llama3
  double high_frequency_factor = 4;  // llama3
  double original_positions = 8192;  // llama3, yarn
  double beta_fast = 32;             // yarn
  double beta_slow = 1;              // yarn
  double attention_factor = 0;       // yarn: multiplies cos and sin; 0 = 0.1 ln(factor) + 1
};

// m, by which cosines and sines are multiplied, and with them every rotated feature of q and of k.
double rope_amplitude(const RopeScaling& scaling);

// Fills table [positions, rotated]: m cos and m sin of the angle p * theta^(-2i/rotated), scaled; computed in double,
// stored in fp32 whatever the model's type.
void rope_table(Tensor table, double theta, const RopeScaling& scaling = {});

}  // namespace keel::ops
