#include "framework/ops/update/update_gate_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::ops::cpu {

void update_gate(Tensor gate, Tensor values, const UpdateGateInputs& in, double clip_norm) {
  const double *sums = in.sums.as<double>(), *limits = in.limits.as<double>();
  const double counted = std::max(1.0, sums[2] / double(in.copies)), each = double(in.copies) * counted;
  double* v = values.as<double>();
  v[0] = sums[3] < sums[2] ? std::numeric_limits<double>::quiet_NaN() : sums[0] / each;
  v[1] = sums[1] / each;
  v[2] = std::sqrt(*in.squares.as<double>());
  v[3] = 0;
  for (int64_t i = 0; i < in.largest_logit.elements(); ++i) {
    const double logit = in.largest_logit.as<float>()[i];
    if (logit > v[3] || std::isnan(logit)) v[3] = logit;  // NaN stays
  }
  const bool clip = clip_norm > 0 && v[2] > clip_norm;
  const double scaled = clip ? clip_norm : v[2];
  if (scaled * scaled > double(std::numeric_limits<float>::max())) v[2] = std::numeric_limits<double>::infinity();
  const bool made = sums[2] > 0 && std::isfinite(v[0]) && std::isfinite(v[2]) && std::isfinite(v[3]) &&
                    v[0] <= limits[0] && v[2] <= limits[1] && v[3] <= limits[2];
  gate.as<float>()[0] = clip ? float(clip_norm / v[2]) : 1.f;
  gate.as<float>()[1] = made ? 1.f : 0.f;
}

}  // namespace keel::ops::cpu
