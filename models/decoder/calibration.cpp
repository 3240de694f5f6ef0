#include "models/decoder/calibration.h"

#include <algorithm>
#include <cmath>

namespace keel::models {
namespace {

// How strongly the gains of a head's pairs are held to one another: a share of the mean diagonal of the equations.
constexpr double kRidge = 0.01;
// Of a row's weight, this share is spread evenly over the keys that it sees; the rest follows their probabilities.
constexpr double kEven = 0.05;

double mean_square(const float* x, int64_t d) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += double(x[i]) * x[i];
  return sum / double(d);
}

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

}  // namespace

// One query and the keys that it sees.
struct QkCalibration::Row {
  const float* q;
  const float* k;  // of the first of them
  int64_t keys, key_stride;
};

QkCalibration::QkCalibration(const DecoderConfig& config, int64_t layer)
    : heads_(config.attention.heads),
      kv_heads_(config.kv_heads()),
      d_(config.head_dim()),
      rotated_(config.layer_has_rope(layer) ? config.rotated_features() : 0),
      units_(d_ - rotated_ / 2),
      window_(config.layer_kind(layer) == LayerKind::local ? config.attention.window.value_or(0) : 0),
      scale_(config.initial_scale(layer)),
      softcap_(config.attention.logit_softcap.value_or(0)),
      sums_(size_t(heads_)),
      k_squares_(size_t(kv_heads_)) {
  for (Head& head : sums_) {
    head.a.resize(size_t(units_ * units_));
    head.b.resize(size_t(units_));
  }
}

// A rotated pair is one unit, a feature that does not turn another.
int64_t QkCalibration::unit_of(int64_t feature) const {
  const int64_t half = rotated_ / 2;
  return feature < half ? feature : feature - half;
}

void QkCalibration::add_equation(Head& head, double weight, const double* units, double logit) {
  const size_t m = head.b.size();
  head.target += weight * logit * logit;
  for (size_t i = 0; i < m; ++i) {
    head.b[i] += weight * logit * units[i];
    for (size_t l = 0; l < m; ++l) head.a[i * m + l] += weight * units[i] * units[l];
  }
}

void QkCalibration::add_row(Head& head, const Row& row) {
  const double q_rms = std::sqrt(mean_square(row.q, d_));
  const size_t m = size_t(units_);
  std::vector<double> logits, x(size_t(row.keys) * m);
  double largest = -HUGE_VAL, sum = 0;
  for (int64_t j = 0; j < row.keys; ++j) {
    const float* k = row.k + j * row.key_stride;
    const double k_rms = std::sqrt(mean_square(k, d_));
    double* units = x.data() + size_t(j) * m;
    double dot = 0;
    for (int64_t i = 0; i < d_; ++i) {
      dot += double(row.q[i]) * k[i];
      units[unit_of(i)] += double(row.q[i]) * k[i] / (q_rms * k_rms + 1e-30);
    }
    logits.push_back(scale_ * dot);
    largest = std::max(largest, softcap_ > 0 ? softcap_ * std::tanh(logits.back() / softcap_) : logits.back());
  }
  const auto exponential = [&](double s) {
    return std::exp((softcap_ > 0 ? softcap_ * std::tanh(s / softcap_) : s) - largest);
  };
  for (double s : logits) sum += exponential(s);
  std::vector<double> mean(m);
  double mean_logit = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    const double s = logits[j], weight = (1 - kEven) * exponential(s) / sum + kEven / double(row.keys);
    mean_logit += weight * s;
    for (size_t i = 0; i < m; ++i) mean[i] += weight * x[j * m + i];
    add_equation(head, weight, x.data() + j * m, s);
  }
  add_equation(head, -1, mean.data(), mean_logit);
  head.q_squares += q_rms * q_rms;
}

void QkCalibration::add(ConstTensor q, ConstTensor k, ConstTensor first_key, nn::BatchShape batch) {
  const int64_t T = batch.length;
  for (int64_t row = 0; row < batch.tokens(); ++row) {
    const int64_t t = row % T, start = row - t;
    int64_t first = first_key.defined() ? first_key.as<int32_t>()[row] : 0;
    if (window_ > 0) first = std::max(first, t - window_ + 1);
    for (int64_t g = 0; g < kv_heads_; ++g)
      k_squares_[size_t(g)] += mean_square(k.as<float>() + (row * kv_heads_ + g) * d_, d_);
#pragma omp parallel for schedule(static)
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t g = h / (heads_ / kv_heads_);
      add_row(sums_[size_t(h)],
              {q.as<float>() + (row * heads_ + h) * d_, k.as<float>() + ((start + first) * kv_heads_ + g) * d_,
               t - first + 1, kv_heads_ * d_});
    }
  }
  rows_ += batch.tokens();
}

// c of each unit: close to the one factor that fits best.
std::vector<double> QkCalibration::solve(const Head& head) const {
  const size_t m = size_t(units_);
  double all_a = 0, all_b = 0, trace = 0;
  for (double value : head.a) all_a += value;
  for (size_t i = 0; i < m; ++i) {
    all_b += head.b[i];
    trace += head.a[i * m + i];
  }
  const double common = all_a > 0 ? all_b / all_a : 0;
  std::vector<double> a = head.a, b = head.b;
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < m; ++j) b[i] -= head.a[i * m + j] * common;
    a[i * m + i] += kRidge * trace / double(m) + 1e-30;
  }
  std::vector<double> c = solve_symmetric(a, b);
  for (double& value : c) value += common;
  return c;
}

CalibratedGains QkCalibration::gains() const {
  require(rows_ > 0, "a calibration without rows");
  CalibratedGains out;
  std::vector<double> k_rms;
  for (double squares : k_squares_) k_rms.push_back(std::sqrt(squares / double(rows_)));
  for (double rms : k_rms) out.k.insert(out.k.end(), size_t(d_), float(rms));
  double error = 0, target = 0;
  for (int64_t h = 0; h < heads_; ++h) {
    const Head& head = sums_[size_t(h)];
    const std::vector<double> c = solve(head);
    const size_t m = c.size();
    const double q_rms = std::sqrt(head.q_squares / double(rows_)), k_of_head = k_rms[size_t(h / (heads_ / kv_heads_))];
    double mean = 0;
    for (double value : c) mean += value / double(m);
    // The mean of c is the scale's, what differs from it the gains'.
    const double unscaled = scale_ * q_rms * k_of_head;
    const double w = mean > 0.01 * unscaled ? mean / unscaled : 1;
    out.scale.push_back(float(w));
    for (int64_t i = 0; i < d_; ++i) out.q.push_back(float(c[size_t(unit_of(i))] / (w * scale_ * k_of_head)));
    for (size_t i = 0; i < m; ++i) {
      error -= 2 * c[i] * head.b[i];
      for (size_t j = 0; j < m; ++j) error += c[i] * head.a[i * m + j] * c[j];
    }
    error += head.target;
    target += head.target;
  }
  out.error = target > 0 ? std::sqrt(std::max(0.0, error) / target) : 0;
  return out;
}

}  // namespace keel::models
