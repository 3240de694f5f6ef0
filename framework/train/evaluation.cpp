#include "framework/train/evaluation.h"

#include <algorithm>

#include "framework/base/clock.h"
#include "framework/ops/cross_entropy.h"
#include "framework/tensor/copy.h"

namespace keel::train {
namespace {

BatchSizes one_micro_step(BatchSizes sizes) {
  sizes.micro_steps = 1;
  return sizes;
}

// Bytes of text behind the first `samples`, to within a token's length; 0 where a file does not say.
double text_bytes(const data::Dataset& dataset, const data::ValidationOrder& order, int64_t samples) {
  double bytes = 0;
  for (size_t source = 0; source < dataset.files().size(); ++source) {
    const auto& notes = dataset.files()[source].notes();
    if (!notes) return 0;
    bytes += double(notes->bytes) * order.share_of(source, samples);
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
  const Clock::time_point begin = Clock::now();
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
  const double bytes = text_bytes(dataset_, order_, samples_);
  if (bytes > 0) result.nats_per_byte = sums.loss / bytes;
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace keel::train
