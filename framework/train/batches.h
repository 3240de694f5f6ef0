// The micro-batches of one step on one rank: memory, and filling from the data set. On a GPU the next step's rows may
// be read while the device is busy with this one's; they travel from pinned memory when their step begins.
#pragma once

#include <optional>
#include <vector>

#include "framework/data/dataset.h"
#include "framework/nn/model.h"
#include "framework/tensor/stream.h"

namespace keel::train {

struct BatchSizes {
  int64_t micro_sequences = 1;  // B of one micro-batch
  int64_t length = 1;           // T
  int64_t micro_steps = 1;
  int64_t rows() const { return micro_sequences * micro_steps; }
  nn::BatchShape shape() const { return {micro_sequences, length}; }  // of one micro-batch
};

class StepBatches {
 public:
  StepBatches(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask, Device device = {});

  // Fills this rank's rows() samples of a step. Returns the number of counted targets.
  int64_t fill(std::span<const data::SampleId> rows);
  // Reads rows that the next fill() will probably ask for, beside the step's own; nothing on the CPU, where no device
  // is busy meanwhile.
  void prefetch(std::span<const data::SampleId> rows);
  nn::TokenBatch micro_batch(int64_t micro_step) const;
  const BatchSizes& sizes() const { return sizes_; }

 private:
  // One step's rows where the data set writes them.
  struct Staged {
    Buffer memory;
    std::vector<data::SampleId> rows;
    int64_t counted = 0;
    std::optional<Event> sent;  // after which the memory may be written again
  };
  void read(Staged& staged, std::span<const data::SampleId> rows) const;
  void send(Staged& staged) const;
  // [micro_steps, B, T] int32 each: tokens, targets, positions, first keys.
  Tensor part(const Buffer& memory, int index) const;

  const data::Dataset& dataset_;
  BatchSizes sizes_;
  bool document_mask_;
  Buffer memory_;  // where the model lies
  Staged staged_, ahead_;
};

}  // namespace keel::train
