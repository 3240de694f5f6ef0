// The micro-batches of one step on one rank: memory, and filling from the data set.
#pragma once

#include <vector>

#include "framework/data/dataset.h"
#include "framework/nn/model.h"

namespace keel::train {

struct BatchSizes {
  int64_t micro_sequences = 1;  // B of one micro-batch
  int64_t length = 1;           // T
  int64_t micro_steps = 1;
  int64_t rows() const { return micro_sequences * micro_steps; }
};

class StepBatches {
 public:
  StepBatches(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask);

  // Fills this rank's rows() samples of a step. Returns the number of counted targets.
  int64_t fill(std::span<const data::SampleId> rows);
  nn::TokenBatch micro_batch(int64_t micro_step) const;
  const BatchSizes& sizes() const { return sizes_; }

 private:
  const data::Dataset& dataset_;
  BatchSizes sizes_;
  bool document_mask_;
  OwnedTensor tokens_, targets_, positions_, first_key_;  // [micro_steps, B, T] int32
};

}  // namespace keel::train
