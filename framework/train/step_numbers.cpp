#include "framework/train/step_numbers.h"

namespace keel::train {
namespace {

Shape gathered(const Tensor& own, int64_t ranks) {
  return own.defined() ? Shape{ranks, own.size(0), own.size(1)} : Shape{0};
}

// All pairs, with room for their alignment.
int64_t capacity_bytes(const nn::ModelTelemetry& own, int64_t ranks) {
  int64_t bytes = 11 * 64;
  for (const HeadStatistic& statistic : kHeadStatistics)
    bytes += 64 + 4 * gathered(own.*statistic.own, ranks).elements();
  return bytes + 8 * own.largest_logit.size(0);
}

}  // namespace

StepNumbers::StepNumbers(const nn::ModelTelemetry& own, const parallel::Mesh& mesh, Device device)
    : block_(device, capacity_bytes(own, mesh.tensor().size())) {
  const int64_t ranks = mesh.tensor().size();
  sums = block_.take({5}, DType::f64);
  limits = block_.take({3}, DType::f64);
  rates = block_.take({3}, DType::f32);
  updates = block_.take({1}, DType::i64);
  factor = block_.take({1}, DType::f32);
  own_sums = block_.take({5}, DType::f64);
  squares = block_.take({1}, DType::f64);
  change = block_.take({1 + own.largest_logit.size(0)}, DType::f64);
  values = block_.take({4}, DType::f64);
  gate = block_.take({2}, DType::f32);
  for (size_t i = 0; i < heads.size(); ++i)
    heads[i] = block_.take(gathered(own.*kHeadStatistics[i].own, ranks), DType::f32);
}

}  // namespace keel::train
