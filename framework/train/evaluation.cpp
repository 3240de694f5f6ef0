#include "framework/train/evaluation.h"

#include <algorithm>
#include <chrono>

#include "framework/ops/cross_entropy.h"
#include "framework/tensor/copy.h"

namespace keel::train {
namespace {

BatchSizes one_micro_step(BatchSizes sizes) {
  sizes.micro_steps = 1;
  return sizes;
}

// Bytes of text behind all tokens; 0 where a file does not say.
int64_t text_bytes(const data::Dataset& dataset) {
  int64_t bytes = 0;
  for (const data::TokenFile& file : dataset.files()) {
    if (!file.notes()) return 0;
    bytes += file.notes()->bytes;
  }
  return bytes;
}

}  // namespace

Evaluation::Evaluation(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask, int64_t sequences,
                       Device device)
    : dataset_(dataset),
      order_(dataset.validation_order()),
      batches_(dataset, one_micro_step(sizes), document_mask, device),
      sums_({4}, DType::f64, device),
      samples_(sequences > 0 ? std::min(sequences, order_.samples()) : order_.samples()) {}

std::optional<EvaluationResult> Evaluation::run(nn::Model& model, parallel::Mesh& mesh,
                                                const std::function<bool()>& interrupted) {
  constexpr int64_t kBatches = 8;  // from one look at `interrupted`, which all ranks take together, to the next
  const auto begin = std::chrono::steady_clock::now();
  const nn::AxisPosition data = mesh.data_position();
  const int64_t own = batches_.sizes().micro_sequences, whole = own * data.size;
  rows_.resize(size_t(own));
  zero(sums_);
  int64_t done = 0;
  for (int64_t first = 0; first < samples_; first += whole) {
    if (interrupted && ++done % kBatches == 0 &&
        comm::all_reduce_value(mesh.world(), int64_t(interrupted()), comm::Reduction::max) != 0)
      return std::nullopt;
    for (int64_t row = 0; row < own; ++row) {
      const int64_t index = first + data.index * own + row;
      rows_[size_t(row)] = index < samples_ ? order_(index) : data::SampleId{};
    }
    batches_.fill(rows_);
    model.evaluate(sums_, batches_.micro_batch(0));
  }
  const HostTensor host(sums_);
  ops::CrossEntropySums sums = ops::CrossEntropySums::of(host.tensor().as<double>());
  for (double* sum : {&sums.loss, &sums.counted}) *sum = comm::all_reduce_value(mesh.data(), *sum);
  EvaluationResult result;
  result.loss = sums.mean_loss();
  result.counted_tokens = int64_t(sums.counted);
  const int64_t bytes = text_bytes(dataset_);
  // A part of the data has that part of the bytes, to within a token's length.
  const double share = double(samples_) / double(order_.samples());
  if (bytes > 0) result.nats_per_byte = sums.loss / (double(bytes) * share);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace keel::train
