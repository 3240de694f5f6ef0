#include "models/decoder/telemetry_hook.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/tensor/copy.h"
#include "models/decoder/bounds.h"

namespace keel::models {
namespace {

constexpr float kUnbounded = std::numeric_limits<float>::infinity();

float largest(std::span<const float> weights, float shift) {
  float largest = 0;
  for (float w : weights) largest = std::max(largest, std::abs(w + shift));
  return largest;
}

// The largest of each row of `width` weights; a weight of one row is every head's, and no weight is a gain of 1.
void largest_of_rows(std::span<float> rows, int64_t width, const nn::Parameter* weight, float shift,
                     std::vector<float>& host) {
  std::fill(rows.begin(), rows.end(), 1.f);
  if (!weight) return;
  host.resize(size_t(weight->local.elements()));
  copy(Tensor(host.data(), weight->local, DType::f32), weight->compute);
  const bool shared = weight->local.elements() == width;
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = largest(std::span(host).subspan(shared ? 0 : i * size_t(width), size_t(width)), shift);
}

}  // namespace

TelemetryHook::TelemetryHook(Decoder& decoder, parallel::Mesh& mesh, train::RunFilesHook& files)
    : decoder_(decoder),
      mesh_(mesh),
      files_(files),
      heads_(mesh, decoder.config().layers * std::max<int64_t>(4, decoder.blocks()[0]->attention.heads())),
      layers_(decoder.config().layers) {
  const nn::Attention& attention = decoder.blocks()[0]->attention;
  const Shape heads = {layers_, attention.heads()};
  for (OwnedTensor* tensor : {&bounds_, &q_gains_, &scales_}) *tensor = OwnedTensor(heads, DType::f32);
  k_gains_ = OwnedTensor({layers_, attention.kv_heads()}, DType::f32);
  for (int64_t layer = 0; layer < layers_; ++layer) factors_.push_back(bound_factor(decoder.config(), layer));
  bounded_ = std::any_of(factors_.begin(), factors_.end(), [](double factor) { return factor > 0; });
}

void TelemetryHook::read_gains() {
  for (int64_t layer = 0; bounded_ && layer < layers_; ++layer) read_gains(layer);
}

train::Verdict TelemetryHook::after_step(const train::StepReport&, const train::Verdict&, const train::Progress&) {
  read_gains();
  return {};
}

train::Verdict TelemetryHook::judge(const train::StepReport& report) {
  if (bounded_) record_bounds(report);
  if (report.entropy.empty()) return {};  // no telemetry step
  if (bounded_) record_gains(report.step);
  record_probe(report);
  return {};
}

void TelemetryHook::read_gains(int64_t layer) {
  const nn::Attention& attention = decoder_.blocks()[size_t(layer)]->attention;
  const int64_t H = attention.heads(), G = attention.kv_heads(), d = attention.spec.head_dim;
  const auto shift = float(attention.qk_norm.pass().zero_centered);
  float* q = q_gains_.tensor.as<float>() + layer * H;
  float* k = k_gains_.tensor.as<float>() + layer * G;
  float* scale = scales_.tensor.as<float>() + layer * H;
  largest_of_rows({q, size_t(H)}, d, attention.qk_norm.q_weight, shift, weights_);
  largest_of_rows({k, size_t(G)}, d, attention.qk_norm.k_weight, shift, weights_);
  largest_of_rows({scale, size_t(H)}, 1, attention.logit_scale, 0, weights_);
  // A rank that owns a query head holds the gains of the KV head that it meets.
  float* bounds = bounds_.tensor.as<float>() + layer * H;
  const auto factor = float(factors_[size_t(layer)]);
  for (int64_t h = 0; h < H; ++h) bounds[h] = factor > 0 ? factor * scale[h] * q[h] * k[h / (H / G)] : kUnbounded;
  for (int64_t h = 0; h < H; ++h) scale[h] *= float(std::abs(attention.spec.initial_scale));
}

void TelemetryHook::record_bounds(const train::StepReport& report) {
  record("logit_bound", report.step, bounds_, report.heads, comm::Reduction::max);
  double used = 0;
  for (size_t head = 0; head < whole_.size(); ++head)
    if (std::isfinite(whole_[head])) used = std::max(used, double(report.largest_logit[head]) / whole_[head]);
  files_.step_value("bound_used", used);
}

void TelemetryHook::record_gains(int64_t step) {
  const AttentionConfig& attention = decoder_.config().attention;
  record("q_gain", step, q_gains_, attention.heads, comm::Reduction::max);
  record("k_gain", step, k_gains_, decoder_.config().kv_heads(), comm::Reduction::max);
  record("logit_scale", step, scales_, attention.heads, comm::Reduction::max);
}

void TelemetryHook::record_probe(const train::StepReport& report) {
  const Probe& probe = decoder_.probe();
  auto collect = [&](ConstTensor own, int64_t width) {
    heads_.collect(whole_, HostTensor(own).tensor(), width, comm::Reduction::sum);
  };
  collect(probe.stream_sums(), 4);  // the ranks of a tensor group have the same
  std::vector<float> outliers, kurtosis;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const float* sums = &whole_[size_t(4 * layer)];
    outliers.push_back(sums[1] / sums[0]);
    kurtosis.push_back(sums[2] > 0 ? sums[0] * sums[3] / (sums[2] * sums[2]) : 0);
  }
  files_.telemetry("stream_outliers", report.step, layers_, outliers);
  files_.telemetry("stream_kurtosis", report.step, layers_, kurtosis);
  if (decoder_.config().recompute != nn::Recompute::none) return;  // queries and keys were not kept
  collect(probe.parallel(), decoder_.config().attention.heads);
  const int64_t micro_batches = report.tokens / decoder_.batch().tokens();  // of all data ranks
  for (float& share : whole_) share /= float(probe.pairs() * micro_batches);
  files_.telemetry("parallel", report.step, layers_, whole_);
}

void TelemetryHook::record(const std::string& name, int64_t step, ConstTensor own, int64_t width,
                           comm::Reduction reduction) {
  heads_.collect(whole_, own, width, reduction);
  files_.telemetry(name, step, layers_, whole_);
}

}  // namespace keel::models
