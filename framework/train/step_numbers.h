// The few numbers of a step that the host and the device tell each other: limits and rates before, sums, norms and
// statistics of heads after. One copy each way, so that a step on a GPU waits for the host nowhere.
#pragma once

#include <array>

#include "framework/ops/cross_entropy.h"
#include "framework/parallel/mesh.h"
#include "framework/tensor/mirrored.h"
#include "framework/train/head_table.h"

namespace keel::train {

// What a rank brings to a step, and then their sums, as they lie in a tensor [5] fp64.
struct StepSums {
  ops::CrossEntropySums tokens;
  double stops = 0;  // ranks that ask for a stop

  static StepSums of(const double* sums) { return {ops::CrossEntropySums::of(sums), sums[4]}; }
  void put(double* sums) const {
    tokens.put(sums);
    sums[4] = stops;
  }
  static Tensor tokens_in(const Tensor& sums) { return sums.slice(0, 0, 4); }
};

class StepNumbers {
 public:
  // Shapes are those of the model's telemetry, gathered over the tensor axis.
  StepNumbers(const nn::ModelTelemetry& own, const parallel::Mesh& mesh, Device device);

  void upload() const { block_.upload(factor); }
  void download() const { block_.download(); }

 private:
  Mirrored block_;

 public:
  using Pair = Mirrored::Pair;
  // The host's, before the step.
  Pair sums;     // [5] fp64: StepSums
  Pair limits;   // [3] fp64: StepLimits
  Pair rates;    // [3] fp32: ops::AdamwRates
  Pair updates;  // [1] int64: made so far
  Pair factor;   // [1] fp32: 1 / counted tokens of the global batch
  // The device's.
  Pair own_sums;  // [5] fp64: this rank's StepSums
  Pair squares;   // [1] fp64: of the gradient, over all ranks
  Pair change;    // [1 + L] fp64: squares of the update, over all ranks: optim::Adamw
  Pair values;    // [4] fp64: ops::GateValues
  Pair gate;      // [2] fp32: ops::Gate
  // Of kHeadStatistics, over the data axis: [tensor ranks, L, heads of a rank] fp32; [0] where the model has none.
  std::array<Pair, std::size(kHeadStatistics)> heads;
};

}  // namespace keel::train
