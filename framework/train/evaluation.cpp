#include "framework/train/evaluation.h"

#include <algorithm>
#include <limits>
#include <map>

#include "framework/base/clock.h"
#include "framework/ops/cross_entropy.h"
#include "framework/tensor/copy.h"

namespace keel::train {
namespace {

BatchSizes one_micro_step(BatchSizes sizes) {
  sizes.micro_steps = 1;
  return sizes;
}

// By source; none where one has no notes, or what they name is not there. Shards, of which there may be thousands, have
// the same tokenizer, often a copy beside each.
std::vector<std::shared_ptr<const data::TextBytes>> text_bytes_of(const data::Dataset& dataset) {
  std::vector<std::shared_ptr<const data::TextBytes>> sources;
  std::map<std::string, std::shared_ptr<const data::TextBytes>> known;
  try {
    for (const data::TokenFile& file : dataset.files()) {
      if (!file.notes()) return {};
      const data::TokenNotes& notes = *file.notes();
      auto& bytes = known[notes.model_crc32c ? std::to_string(*notes.model_crc32c) : notes.model_path()];
      if (!bytes) bytes = std::make_shared<data::TextBytes>(*data::tokenizer_of(notes));
      sources.push_back(bytes);
    }
  } catch (const Error&) {  // files of token ids are enough to evaluate on
    return {};
  }
  return sources;
}

// Over the whole world, so that all ranks judge the same numbers: those of a tensor group bring copies.
EvaluationResult over_world(const parallel::Mesh& mesh, const ops::CrossEntropySums& own, double bytes) {
  double sums[] = {own.loss, own.counted, bytes};
  mesh.world().all_reduce(Tensor(sums, {3}, DType::f64));
  for (double& sum : sums) sum /= mesh.tensor().size();
  EvaluationResult result;
  result.loss = ops::CrossEntropySums{.loss = sums[0], .counted = sums[1]}.mean_loss();
  result.counted_tokens = int64_t(sums[1]);
  if (sums[2] > 0) result.nats_per_byte = sums[0] / sums[2];
  return result;
}

}  // namespace

Evaluation::Evaluation(const data::Dataset& dataset, const BatchSizes& sizes, bool document_mask, int64_t sequences,
                       Device device)
    : text_bytes_(text_bytes_of(dataset)),
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
  double bytes = 0;  // of the counted tokens' text; not a number where a rank does not know
  for (int64_t first = 0; first < samples_; first += whole) {
    if (interrupted && ++done % kBatches == 0 &&
        comm::all_reduce_value(mesh.world(), int64_t(interrupted()), comm::Reduction::max) != 0)
      return std::nullopt;
    for (int64_t row = 0; row < own; ++row) {
      const int64_t index = first + data.index * own + row;
      rows_[size_t(row)] = index < samples_ ? order_(index) : data::SampleId{};
    }
    batches_.fill(rows_);
    bytes += target_bytes();
    model.evaluate(sums_, batches_.micro_batch(0));
  }
  const HostTensor host(sums_);
  EvaluationResult result = over_world(mesh, ops::CrossEntropySums::of(host.tensor().as<double>()), bytes);
  result.seconds = seconds_since(begin);
  return result;
}

double Evaluation::target_bytes() const {
  if (text_bytes_.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto [tokens, targets] = batches_.on_host();
  const auto length = size_t(batches_.sizes().length);
  double bytes = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].source < 0) continue;
    const auto of_row = [&](const ConstTensor& ids) { return std::span(ids.as<int32_t>() + row * length, length); };
    bytes += double(text_bytes_[size_t(rows_[row].source)]->of_targets(of_row(tokens), of_row(targets)));
  }
  return bytes;
}

}  // namespace keel::train
