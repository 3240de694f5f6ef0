#include "framework/train/batches.h"

#include "framework/tensor/copy.h"

namespace keel::train {
namespace {

enum Part { tokens, targets, positions, first_key, kParts };

}  // namespace

StepBatches::StepBatches(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask, Device device)
    : dataset_(dataset), sizes_(sizes), document_mask_(document_mask) {
  const int64_t bytes = kParts * sizes.rows() * sizes.length * 4;
  memory_ = Buffer(device, bytes);
  if (device.kind == DeviceKind::cuda)
    for (Staged* staged : {&staged_, &ahead_}) {
      staged->memory = Buffer::pinned(bytes, device);
      staged->sent.emplace(device);
    }
  for (const Buffer* memory : {&memory_, &staged_.memory, &ahead_.memory}) {
    if (!memory->data() || memory->device().kind == DeviceKind::cuda) continue;
    int32_t* places = part(*memory, positions).as<int32_t>();
    for (int64_t i = 0; i < sizes.rows() * sizes.length; ++i) places[i] = int32_t(i % sizes.length);
  }
}

Tensor StepBatches::part(const Buffer& memory, int index) const {
  const Shape shape = {sizes_.micro_steps, sizes_.micro_sequences, sizes_.length};
  return memory.tensor(index * shape.elements() * 4, shape, DType::i32);
}

void StepBatches::read(Staged& staged, std::span<const data::SampleId> rows) const {
  require(int64_t(rows.size()) == sizes_.rows(), "{} samples for {} rows", rows.size(), sizes_.rows());
  if (staged.sent) staged.sent->synchronize();
  const Buffer& memory = staged.memory.data() ? staged.memory : memory_;
  auto span = [&](Part which) {
    const Tensor tensor = part(memory, which);
    return std::span(tensor.as<int32_t>(), size_t(tensor.elements()));
  };
  const std::span<int32_t> places = span(positions), first = span(first_key);
  staged.counted = dataset_.fill(rows, {span(tokens), span(targets), document_mask_ ? places : std::span<int32_t>()});
  if (document_mask_)
    for (size_t i = 0; i < first.size(); ++i) first[i] = int32_t(int64_t(i) % sizes_.length) - places[i];
  staged.rows.assign(rows.begin(), rows.end());
}

int64_t StepBatches::fill(std::span<const data::SampleId> rows) {
  if (std::equal(rows.begin(), rows.end(), ahead_.rows.begin(), ahead_.rows.end()))
    std::swap(staged_, ahead_);
  else
    read(staged_, rows);
  ahead_.rows.clear();
  send(staged_);
  return staged_.counted;
}

void StepBatches::send(Staged& staged) const {
  if (!staged.sent) return;
  const Shape all = {memory_.size_bytes() / 4};
  const Stream& stream = Stream::current(memory_.device());
  copy_async(memory_.tensor(0, all, DType::i32), staged.memory.tensor(0, all, DType::i32), stream);
  staged.sent->record(stream);
}

void StepBatches::prefetch(std::span<const data::SampleId> rows) {
  if (ahead_.memory.data()) read(ahead_, rows);
}

nn::TokenBatch StepBatches::micro_batch(int64_t micro_step) const {
  auto of = [&](Part which) { return part(memory_, which).row(micro_step); };
  return {of(tokens), of(targets), of(positions), document_mask_ ? of(first_key) : Tensor()};
}

}  // namespace keel::train
