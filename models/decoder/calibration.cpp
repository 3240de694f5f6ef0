#include "models/decoder/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "framework/base/rng.h"
#include "models/decoder/block_specs.h"

namespace keel::models {
namespace {

// How strongly the gains of a head's pairs are held to one another: a share of the mean curvature.
constexpr double kRidge = 0.01;
// No step changes a gain by more than this share of the largest one.
constexpr double kLongestStep = 0.5;

// Solves the symmetric positive definite a x = b, by Cholesky's factors in place.
std::vector<double> solve_symmetric(std::vector<double> a, std::vector<double> b) {
  const size_t m = b.size();
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i * m + j];
      for (size_t k = 0; k < j; ++k) sum -= a[i * m + k] * a[j * m + k];
      a[i * m + j] = i == j ? std::sqrt(sum) : sum / a[j * m + j];
    }
  for (size_t i = 0; i < m; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * m + k] * b[k];
    b[i] /= a[i * m + i];
  }
  for (size_t i = m; i-- > 0;) {
    for (size_t k = i + 1; k < m; ++k) b[i] -= a[k * m + i] * b[k];
    b[i] /= a[i * m + i];
  }
  return b;
}

void softmax(std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& s : logits) sum += s = std::exp(s - largest);
  for (double& s : logits) s /= sum;
}

}  // namespace

// One query and the keys that it sees.
struct QkCalibration::Row {
  const float* q;
  const float* k;  // of the first of them
  int64_t keys, key_stride;
};

QkCalibration::QkCalibration(const DecoderConfig& config, int64_t layer, const CalibrationOptions& options)
    : heads_(options.heads),
      kv_heads_(options.kv_heads),
      d_(config.head_dim()),
      rotated_(config.layer_has_rope(layer) ? config.rotated_features() : 0),
      units_(d_ - rotated_ / 2),
      window_(config.layer_kind(layer) == LayerKind::local ? config.attention.window.value_or(0) : 0),
      every_(options.every),
      amplitude_(rope_amplitude(config, layer)),
      scale_(config.initial_scale(layer)),
      softcap_(config.attention.logit_softcap.value_or(0)),
      sums_(size_t(heads_)),
      k_squares_(size_t(kv_heads_)) {
  const std::span<const float> scale = options.scale;
  require(scale.size() <= 1 || int64_t(scale.size()) == heads_, "{} scales of {} heads", scale.size(), heads_);
  for (size_t h = 0; h < sums_.size(); ++h)
    sums_[h].scale = scale_ * (scale.empty() ? 1 : double(scale[scale.size() == 1 ? 0 : h]));
}

// A rotated pair is one unit, a feature that does not turn another.
int64_t QkCalibration::unit_of(int64_t feature) const {
  const int64_t half = rotated_ / 2;
  return feature < half ? feature : feature - half;
}

// Of a row before its rotation, which a norm will see.
double QkCalibration::mean_square(const float* x) const {
  double turned = 0, other = 0;
  for (int64_t i = 0; i < rotated_; ++i) turned += double(x[i]) * x[i];
  for (int64_t i = rotated_; i < d_; ++i) other += double(x[i]) * x[i];
  return (turned / (amplitude_ * amplitude_) + other) / double(d_);
}

double QkCalibration::capped(double s) const {
  return softcap_ > 0 ? softcap_ * std::tanh(s / softcap_) : s;
}

// At a place by chance, so that neither rows nor the lengths of texts repeat with it.
bool QkCalibration::is_looked_at(int64_t row) const {
  const int64_t stretch = row / every_;
  return row % every_ == int64_t(uniform(key_of(0, "calibration"), uint64_t(stretch)) * double(every_));
}

void QkCalibration::add_sizes(const float* q, const float* k) {
  for (int64_t h = 0; h < heads_; ++h) sums_[size_t(h)].q_squares += mean_square(q + h * d_);
  for (int64_t g = 0; g < kv_heads_; ++g) k_squares_[size_t(g)] += mean_square(k + g * d_);
}

void QkCalibration::add_row(Head& head, const Row& row) const {
  const double q_square = mean_square(row.q);
  const size_t m = size_t(units_), keys = size_t(row.keys);
  std::vector<double> x(keys * m), before(keys), after(keys), mean(m);
  for (size_t j = 0; j < keys; ++j) {
    const float* k = row.k + int64_t(j) * row.key_stride;
    const double sizes = std::sqrt(q_square * mean_square(k)) + 1e-30;
    double dot = 0;
    for (int64_t i = 0; i < d_; ++i) {
      dot += double(row.q[i]) * k[i];
      x[j * m + size_t(unit_of(i))] += double(row.q[i]) * k[i] / sizes;
    }
    const double s = std::inner_product(head.c.begin(), head.c.end(), x.begin() + ptrdiff_t(j * m), 0.0);
    before[j] = capped(head.scale * dot);
    after[j] = capped(s);
    const double slope = softcap_ > 0 ? 1 - std::pow(after[j] / softcap_, 2) : 1;
    for (size_t i = 0; i < m; ++i) x[j * m + i] *= slope;
  }
  softmax(before);
  softmax(after);
  for (size_t j = 0; j < keys; ++j) {
    const double* units = x.data() + j * m;
    if (before[j] > 0) head.divergence += before[j] * std::log(before[j] / std::max(after[j], 1e-300));
    for (size_t i = 0; i < m; ++i) {
      head.gradient[i] += (after[j] - before[j]) * units[i];
      mean[i] += after[j] * units[i];
      for (size_t l = 0; l < m; ++l) head.hessian[i * m + l] += after[j] * units[i] * units[l];
    }
  }
  for (size_t i = 0; i < m; ++i)
    for (size_t l = 0; l < m; ++l) head.hessian[i * m + l] -= mean[i] * mean[l];
}

void QkCalibration::add(ConstTensor q, ConstTensor k, ConstTensor first_key, nn::BatchShape batch, int64_t first_row) {
  const int64_t T = batch.length;
  for (int64_t row = 0; row < batch.tokens(); ++row) {
    if (passes_ == 0) add_sizes(q.as<float>() + row * heads_ * d_, k.as<float>() + row * kv_heads_ * d_);
    if (passes_ > 0 && !is_looked_at(first_row + row)) continue;
    ++seen_;
    if (passes_ == 0) continue;
    const int64_t t = row % T, start = row - t;
    int64_t first = first_key.defined() ? first_key.as<int32_t>()[row] : 0;
    if (window_ > 0) first = std::max(first, t - window_ + 1);
#pragma omp parallel for schedule(static)
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t g = h / (heads_ / kv_heads_);
      add_row(sums_[size_t(h)],
              {q.as<float>() + (row * heads_ + h) * d_, k.as<float>() + ((start + first) * kv_heads_ + g) * d_,
               t - first + 1, kv_heads_ * d_});
    }
  }
}

// One of Newton, held back where it is long or where nothing but the ridge decides.
void QkCalibration::step(Head& head) const {
  const size_t m = head.c.size();
  double curvature = 1e-30, mean = 0, largest = 0, longest = 0;
  for (size_t i = 0; i < m; ++i) {
    curvature += kRidge * head.hessian[i * m + i] / double(m);
    mean += head.c[i] / double(m);
    largest = std::max(largest, std::abs(head.c[i]));
  }
  for (size_t i = 0; i < m; ++i) {
    head.hessian[i * m + i] += curvature;
    head.gradient[i] += curvature * (head.c[i] - mean);
  }
  const std::vector<double> change = solve_symmetric(head.hessian, head.gradient);
  for (double value : change) longest = std::max(longest, std::abs(value));
  const double share = std::min(1.0, kLongestStep * largest / std::max(longest, 1e-30));
  for (size_t i = 0; i < m; ++i) head.c[i] -= share * change[i];
}

void QkCalibration::add_up(comm::Communicator& data) {
  const auto sum = [&](std::vector<double>& values) {
    if (!values.empty()) data.all_reduce(Tensor(values.data(), {int64_t(values.size())}, DType::f64, {}));
  };
  for (Head& head : sums_) {
    sum(head.gradient);
    sum(head.hessian);
    head.divergence = comm::all_reduce_value(data, head.divergence);
    if (passes_ == 0) head.q_squares = comm::all_reduce_value(data, head.q_squares);
  }
  if (passes_ == 0) sum(k_squares_);
  (passes_ == 0 ? rows_ : fitted_) += comm::all_reduce_value(data, std::exchange(seen_, 0));
}

void QkCalibration::improve(comm::Communicator& data) {
  add_up(data);
  require(rows_ > 0, "a calibration without rows");
  const size_t m = size_t(units_);
  for (int64_t h = 0; h < heads_; ++h) {
    Head& head = sums_[size_t(h)];
    if (passes_ == 0) {
      const double k_square = k_squares_[size_t(h / (heads_ / kv_heads_))];
      head.c.assign(m, head.scale * std::sqrt(head.q_squares * k_square) / double(rows_));
    } else {
      if (head.divergence < head.least) head.best = head.c;
      head.least = std::min(head.least, head.divergence);
      step(head);
    }
    head.gradient.assign(m, 0);
    head.hessian.assign(m * m, 0);
    head.divergence = 0;
  }
  ++passes_;
}

CalibratedGains QkCalibration::gains() const {
  require(passes_ > 1, "a calibration of {} passes", passes_);
  CalibratedGains out;
  std::vector<double> k_rms;
  for (double squares : k_squares_) k_rms.push_back(std::sqrt(squares / double(rows_)));
  for (double rms : k_rms) out.k.insert(out.k.end(), size_t(d_), rms > 0 ? float(rms) : 1);
  for (int64_t h = 0; h < heads_; ++h) {
    const Head& head = sums_[size_t(h)];
    require(!head.best.empty(), "head {}: no pass of its calibration gave a finite divergence", h);
    const double q_rms = std::sqrt(head.q_squares / double(rows_)), k_of_head = k_rms[size_t(h / (heads_ / kv_heads_))];
    double mean = 0;
    for (double value : head.best) mean += value / double(units_);
    // The mean of c is the scale's, what differs from it the gains'.
    const double unscaled = scale_ * q_rms * k_of_head;
    const double w = mean > 0.01 * unscaled ? mean / unscaled : 1;
    out.scale.push_back(float(w));
    // Rows without any length stay what they are under every gain.
    for (int64_t i = 0; i < d_; ++i)
      out.q.push_back(unscaled > 0 ? float(head.best[size_t(unit_of(i))] / (w * scale_ * k_of_head)) : 1);
    out.divergence += head.least / double(std::max<int64_t>(1, rows_of_a_pass()) * heads_);
  }
  return out;
}

}  // namespace keel::models
