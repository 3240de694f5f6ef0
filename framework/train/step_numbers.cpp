#include "framework/train/step_numbers.h"

namespace keel::train {
namespace {

Shape gathered(const Tensor& own, int64_t ranks) {
  return own.defined() ? Shape{ranks, own.size(0), own.size(1)} : Shape{0};
}

// All pairs, with room for their alignment.
int64_t capacity_bytes(const nn::ModelTelemetry& own, int64_t ranks) {
  int64_t bytes = 11 * 64;
  for (const Tensor& part : {own.largest_logit, own.logit_bound, own.q_gain, own.k_gain, own.logit_scale, own.entropy,
                             own.q_squares, own.k_squares})
    bytes += 64 + 4 * gathered(part, ranks).elements();
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
  for (auto [pair, part] : {std::pair(&largest_logit, own.largest_logit),
                            {&logit_bound, own.logit_bound},
                            {&q_gain, own.q_gain},
                            {&k_gain, own.k_gain},
                            {&logit_scale, own.logit_scale},
                            {&entropy, own.entropy},
                            {&q_squares, own.q_squares},
                            {&k_squares, own.k_squares}})
    *pair = block_.take(gathered(part, ranks), DType::f32);
}

}  // namespace keel::train
