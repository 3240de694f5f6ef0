#include "framework/train/batches.h"

namespace keel::train {

StepBatches::StepBatches(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask)
    : dataset_(dataset), sizes_(sizes), document_mask_(document_mask) {
  const Shape shape = {sizes.micro_steps, sizes.micro_sequences, sizes.length};
  for (OwnedTensor* part : {&tokens_, &targets_, &positions_, &first_key_}) *part = OwnedTensor(shape, DType::i32);
  int32_t* positions = positions_.tensor.as<int32_t>();
  for (int64_t i = 0; i < shape.elements(); ++i) positions[i] = int32_t(i % sizes.length);
}

int64_t StepBatches::fill(std::span<const data::SampleId> rows) {
  require(int64_t(rows.size()) == sizes_.rows(), "{} samples for {} rows", rows.size(), sizes_.rows());
  auto span = [](const OwnedTensor& part) {
    return std::span(part.tensor.as<int32_t>(), size_t(part.tensor.elements()));
  };
  const std::span<int32_t> positions = span(positions_), first_key = span(first_key_);
  const int64_t counted =
      dataset_.fill(rows, {span(tokens_), span(targets_), document_mask_ ? positions : std::span<int32_t>()});
  if (document_mask_)
    for (size_t i = 0; i < first_key.size(); ++i) first_key[i] = int32_t(int64_t(i) % sizes_.length) - positions[i];
  return counted;
}

nn::TokenBatch StepBatches::micro_batch(int64_t micro_step) const {
  auto part = [&](const OwnedTensor& whole) {
    return whole.tensor.slice(0, micro_step, micro_step + 1).reshaped({sizes_.micro_sequences, sizes_.length});
  };
  return {part(tokens_), part(targets_), part(positions_), document_mask_ ? part(first_key_) : Tensor()};
}

}  // namespace keel::train
