// Cross-entropy over a vocabulary that may be split over ranks, in chunks of tokens, so that the logits of a whole
// batch never exist. Each rank makes statistics of its own columns; the ranks combine them; then each makes its
// gradient.
//
//   loss = lse - (1 - e) * logit[target] - e * mean(logits)      lse = log sum exp(logits), natural logarithm
//   objective = loss + z * lse^2          (PaLM's z-loss; e: label smoothing over the real vocabulary)
//   d objective / d logit = (1 + 2 z lse) * softmax - (1 - e) [target] - e / V
//
// Logits are soft-capped first where asked: cap * tanh(logit / cap). Columns at or beyond the real vocabulary (padding)
// take no part. Rows whose target is negative are not counted: loss and gradient 0.
#pragma once

#include <algorithm>
#include <array>

#include "framework/tensor/tensor.h"

namespace keel::ops {

struct CrossEntropyOptions {
  int64_t vocabulary = 0;    // V, the real one, over all ranks
  int64_t first_column = 0;  // the id of this rank's first column
  float softcap = 0;         // 0 = none
  float label_smoothing = 0;
  float z_loss = 0;
};

// Per row, fp32. Ranks combine the maximum first, rescale sum_exp to it (cross_entropy_rescale), then add the sums.
struct CrossEntropyStatistics {
  Tensor maximum;       // [n]
  Tensor sum_exp;       // [n], of exp(logit - maximum)
  Tensor target_logit;  // [n], 0 where the target's column lies elsewhere
  Tensor logit_sum;     // [n]: for label smoothing
};

// Of this rank's columns. logits [n, columns] are fp32, soft-capped in place.
void cross_entropy_statistics(const CrossEntropyStatistics& statistics, Tensor logits, ConstTensor targets,
                              const CrossEntropyOptions& options);
// sum_exp *= exp(maximum - global_maximum), maximum = global_maximum: after which sum_exp may be added over ranks.
void cross_entropy_rescale(const CrossEntropyStatistics& statistics, ConstTensor global_maximum);

// Sums over counted rows, as they lie in a tensor [4] fp64.
struct CrossEntropySums {
  double loss = 0;    // without the z-loss
  double z_loss = 0;  // z * lse^2
  double counted = 0;
  double finite = 0;  // rows with a finite loss; below `counted` something overflowed

  static CrossEntropySums of(const double* sums) { return {sums[0], sums[1], sums[2], sums[3]}; }
  void put(double* sums) const { std::ranges::copy(std::array{loss, z_loss, counted, finite}, sums); }
  // Nats per counted row; 0 where there is none.
  double mean_loss() const { return loss / std::max(1.0, counted); }
};
// sums [4] fp64 += what these rows add.
void cross_entropy_loss(Tensor sums, const CrossEntropyStatistics& statistics, ConstTensor targets,
                        const CrossEntropyOptions& options);

struct CrossEntropyGradient {
  ConstTensor logits;  // as statistics left them
  CrossEntropyStatistics statistics;
  ConstTensor targets;
  ConstTensor factor;  // [1] fp32: 1 / (counted tokens of the global batch)
  CrossEntropyOptions options;
};
// d_logits [n, columns] (fp32 or bf16; may be the logits themselves) = factor * d objective / d logit, soft-cap's
// derivative included.
void cross_entropy_gradient(Tensor d_logits, const CrossEntropyGradient& call);

}  // namespace keel::ops
