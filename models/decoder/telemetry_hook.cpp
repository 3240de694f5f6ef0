#include "models/decoder/telemetry_hook.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/tensor/copy.h"

namespace keel::models {

TelemetryHook::TelemetryHook(Decoder& decoder, parallel::Mesh& mesh, train::TelemetryArrays& arrays)
    : decoder_(decoder),
      mesh_(mesh),
      arrays_(arrays),
      heads_(mesh, decoder.config().layers * std::max<int64_t>(4, decoder.blocks()[0]->attention.heads())),
      matrices_(decoder.parameters(), mesh, decoder.config().layers),
      pieces_(parallel::pieces_of(decoder.parameters(), mesh.data_position())),
      layers_(decoder.config().layers) {
  const nn::Attention& attention = decoder.blocks()[0]->attention;
  rounded_ = std::ranges::any_of(decoder.parameters().arenas(),
                                 [](const nn::ParameterArena& arena) { return arena.compute_dtype == DType::bf16; });
  const int64_t d = attention.spec.head_dim, all = decoder.telemetry().heads, all_kv = decoder.telemetry().kv_heads;
  add_gains("q_gain_gradient", [](const nn::Attention& a) { return a.qk_norm.q_weight; }, {d, attention.heads(), all});
  add_gains("k_gain_gradient", [](const nn::Attention& a) { return a.qk_norm.k_weight; },
            {d, attention.kv_heads(), all_kv});
  add_gains("logit_scale_gradient", [](const nn::Attention& a) { return a.logit_scale; }, {1, attention.heads(), all});
}

template <class WeightOf>
void TelemetryHook::add_gains(const char* name, WeightOf weight_of, const HeadRows& rows) {
  Gains gains{name, {}, rows};
  const nn::Parameter* any = nullptr;
  for (const auto& block : decoder_.blocks()) {
    gains.of_layers.push_back(weight_of(block->attention));
    if (gains.of_layers.back()) any = gains.of_layers.back();
  }
  if (!any) return;
  const bool shared = any->spec.shape.elements() == rows.elements;
  if (shared) gains.rows.own = gains.rows.all = 1;
  gains_.push_back(std::move(gains));
}

train::Verdict TelemetryHook::judge(const train::StepReport& report) {
  if (!report.telemetry) return {};
  for (const Gains& gains : gains_) record_gradient(report.step, gains);
  record_places(report);
  record_matrices(report);
  record_stream(report.step);
  record_parallel(report.step);
  return {};
}

// Of a gain's gradient every rank sums the squares of what its pieces hold.
void TelemetryHook::record_gradient(int64_t step, const Gains& gains) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const OwnedTensor own({layers_, gains.rows.own}, DType::f64);
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const nn::Parameter* weight = gains.of_layers[size_t(layer)];
    double* rows = own.tensor.as<double>() + layer * gains.rows.own;
    std::fill_n(rows, gains.rows.own, weight ? 0 : kNone);
    if (!weight) continue;
    const HostTensor gradient(weight->gradient);
    parallel::for_each_part(pieces_, *weight, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        rows[i / gains.rows.elements] += std::pow(double(gradient.tensor().as<float>()[i]), 2);
    });
  }
  std::vector<double> squares;
  heads_.collect(squares, own, gains.rows.all, comm::Reduction::sum);
  whole_.clear();
  for (double square : squares) whole_.push_back(float(std::sqrt(square)));
  arrays_.telemetry(gains.name, step, layers_, whole_);
}

// A rank whose own largest logit is not the step's says nothing; of the others the first place counts.
void TelemetryHook::record_places(const train::StepReport& report) {
  const nn::ModelTelemetry& telemetry = decoder_.telemetry();
  const HostTensor logits(telemetry.largest_logit);
  const OwnedTensor own(telemetry.largest_logit_place.shape(), DType::i64);
  copy(own, telemetry.largest_logit_place);
  const int64_t H = own.tensor.size(1), first_head = mesh_.tensor_position().index * H;
  for (int64_t i = 0; i < own.tensor.elements(); ++i) {
    const float largest = report.largest_logit[size_t(i / H * telemetry.heads + first_head + i % H)];
    if (logits.tensor().as<float>()[i] != largest) own.tensor.as<int64_t>()[i] = 0;
  }
  std::vector<int64_t> numbers, places;
  heads_.collect(numbers, own, telemetry.heads, comm::Reduction::max);
  for (int64_t number : numbers) {
    const ops::LogitPlace place = ops::LogitPlace::of(number);
    if (number == 0) {
      places.insert(places.end(), 4, -1);
      continue;
    }
    const data::SampleId& sample = report.samples[size_t(place.sequence)];
    places.insert(places.end(), {sample.source, sample.sample, place.query, place.key});
  }
  arrays_.telemetry("largest_logit_place", report.step, {uint64_t(layers_), uint64_t(telemetry.heads), 4}, places);
}

void TelemetryHook::record_matrices(const train::StepReport& report) {
  const train::LayerStatistics::Layers& layers = matrices_.collect();
  whole_.clear();
  for (size_t layer = 0; layer < layers.weight_norms.size(); ++layer)
    whole_.push_back(float(report.layer_update_norms[layer] / layers.weight_norms[layer]));
  arrays_.telemetry("update_ratio", report.step, layers_, whole_);
  arrays_.telemetry("weights_saturated", report.step, layers_, layers.saturated);
  arrays_.telemetry("weights_flushed", report.step, layers_, layers.flushed);
}

template <class T>
void TelemetryHook::collect(std::vector<T>& whole, ConstTensor own, int64_t width) {
  heads_.collect(whole, HostTensor(own).tensor(), width, comm::Reduction::sum);
}

void TelemetryHook::record_stream(int64_t step) {
  const TelemetrySamples& samples = decoder_.samples();
  collect(whole_, samples.stream_sums(), 4);
  std::vector<float> outliers, kurtosis;
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto moments = StreamMoments::of(&whole_[size_t(4 * layer)]);
    outliers.push_back(moments.outliers);
    kurtosis.push_back(moments.kurtosis);
  }
  arrays_.telemetry("stream_outliers", step, layers_, outliers);
  arrays_.telemetry("stream_kurtosis", step, layers_, kurtosis);
  if (!rounded_) return;
  std::vector<double> counts;
  collect(counts, samples.out_of_range(), 2);
  std::vector<float> saturated, flushed;
  for (size_t layer = 0; layer < size_t(layers_); ++layer) {
    const double elements = whole_[4 * layer];
    saturated.push_back(float(counts[2 * layer] / elements));
    flushed.push_back(float(counts[2 * layer + 1] / elements));
  }
  arrays_.telemetry("stream_saturated", step, layers_, saturated);
  arrays_.telemetry("stream_flushed", step, layers_, flushed);
}

void TelemetryHook::record_parallel(int64_t step) {
  const TelemetrySamples& samples = decoder_.samples();
  std::vector<float> pairs;
  collect(pairs, samples.pairs(), 1);
  const int64_t heads = decoder_.config().attention.heads;
  collect(whole_, samples.parallel(), heads);
  for (size_t i = 0; i < whole_.size(); ++i) whole_[i] /= pairs[i / size_t(heads)];
  arrays_.telemetry("parallel", step, layers_, whole_);
}

}  // namespace keel::models
