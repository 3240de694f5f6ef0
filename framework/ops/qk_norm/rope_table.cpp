#include "framework/ops/qk_norm/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "framework/ops/support/threads.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/copy.h"

namespace keel::ops {
namespace {

// Llama 3.1: long waves are stretched by `factor`, short ones are left alone, with a straight ramp between.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  double turns = scaling.original_positions * frequency / (2 * std::numbers::pi);  // within the original context
  double share =
      (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
  share = std::clamp(share, 0.0, 1.0);
  return frequency * (share + (1 - share) / scaling.factor);
}

// YaRN (Peng et al. 2023), "NTK by parts": features that turn more than beta_fast times within the original context
// are left alone, those that turn less than beta_slow times are stretched, with a ramp over the feature's number.
double yarn_frequency(double frequency, int64_t pair, int64_t rotated, double theta, const RopeScaling& scaling) {
  auto pair_that_turns = [&](double turns) {
    return double(rotated) * std::log(scaling.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = std::max(std::floor(pair_that_turns(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_that_turns(scaling.beta_slow)), double(rotated - 1));
  if (low == high) high += 0.001;  // as published: a step instead of a division by 0
  double stretched = std::clamp((double(pair) - low) / (high - low), 0.0, 1.0);
  return frequency * (1 - stretched + stretched / scaling.factor);
}

double frequency_of(int64_t pair, int64_t rotated, double theta, const RopeScaling& scaling) {
  double frequency = std::pow(theta, -2.0 * double(pair) / double(rotated));
  switch (scaling.kind) {
    case RopeScaling::Kind::linear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::yarn:
      return yarn_frequency(frequency, pair, rotated, theta, scaling);
    default:
      return frequency;
  }
}

void check(const Tensor& table, double theta, const RopeScaling& scaling) {
  require(table.dims() == 2 && table.size(1) % 2 == 0 && table.dtype() == DType::f32 && table.contiguous(),
          "rope_table: fp32 [positions, an even number of features] expected, got {} {}", name_of(table.dtype()),
          table.shape());
  require(theta > 1 && scaling.factor > 0 && scaling.original_positions > 0,
          "rope_table: theta {}, factor {}, {} original positions", theta, scaling.factor, scaling.original_positions);
  require(scaling.kind != RopeScaling::Kind::llama3 || scaling.high_frequency_factor > scaling.low_frequency_factor,
          "rope_table: the high frequency factor {} must be above the low one {}", scaling.high_frequency_factor,
          scaling.low_frequency_factor);
}

}  // namespace

double rope_amplitude(const RopeScaling& scaling) {
  if (scaling.kind != RopeScaling::Kind::yarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
}

void rope_table(Tensor table, double theta, const RopeScaling& scaling) {
  check(table, theta, scaling);
  if (table.device().is_meta()) return;
  if (table.device().kind != DeviceKind::cpu) {  // made once, before the first step
    const OwnedTensor on_host(table.shape(), table.dtype());
    rope_table(on_host, theta, scaling);
    return copy(table, on_host);
  }
  const int64_t rotated = table.size(1), half = rotated / 2;
  std::vector<double> frequencies(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) frequencies[size_t(i)] = frequency_of(i, rotated, theta, scaling);
  const double amplitude = rope_amplitude(scaling);
  float* rows = table.as<float>();
  for_parts(table.size(0), parts_of(table.size(0), 64), [&](int, int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      float* row = rows + position * rotated;
      for (int64_t i = 0; i < half; ++i) {
        double angle = double(position) * frequencies[size_t(i)];
        row[i] = float(amplitude * std::cos(angle));
        row[half + i] = float(amplitude * std::sin(angle));
      }
    }
  });
}

}  // namespace keel::ops
