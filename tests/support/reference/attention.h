// Attention in double with its whole T_q x T_k matrix, composed plainly from the formulas of
// framework/ops/attention/attention.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace keel::reference {

struct Attention {
  int64_t B = 1, T_q = 1, T_k = 1, H = 1, G = 1, d = 1;
  bool causal = true;
  int64_t q_offset = 0, window = 0;
  double softcap = 0;
  std::vector<double> q = {}, k = {}, v = {};  // [B, T_q, H, d], [B, T_k, G, d] twice
  std::vector<double> scale = {};              // [H]
  std::vector<int64_t> first_key = {};         // [B, T_q] or empty

  int64_t q_at(int64_t b, int64_t t, int64_t h) const { return ((b * T_q + t) * H + h) * d; }
  int64_t k_at(int64_t b, int64_t j, int64_t h) const { return ((b * T_k + j) * G + h / (H / G)) * d; }
  bool sees(int64_t b, int64_t t, int64_t j) const {
    if (causal && j > q_offset + t) return false;
    if (window > 0 && q_offset + t - j >= window) return false;
    return first_key.empty() || j >= first_key[size_t(b * T_q + t)];
  }
};

struct AttentionPlace {
  int64_t b = -1, t = -1, j = -1;  // sequence, query, key
};

struct AttentionResult {
  std::vector<double> out, log_sum_exp, largest_logit, entropy;  // [B, T_q, H, d], [B, H, T_q], [H], [H]
  std::vector<AttentionPlace> place;                             // [H]: the first one of the largest logit
};

// One row: raw scores, scores after the soft-cap, probabilities. Empty probabilities where nothing is visible.
struct AttentionRow {
  std::vector<double> raw, capped, probability;
  double log_sum_exp = -std::numeric_limits<double>::infinity();
};

inline double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline AttentionRow attention_row(const Attention& x, int64_t b, int64_t t, int64_t h) {
  AttentionRow row;
  row.raw.assign(size_t(x.T_k), 0);
  row.probability.assign(size_t(x.T_k), 0);
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t j = 0; j < x.T_k; ++j)
    row.raw[size_t(j)] = x.scale[size_t(h)] * dot(&x.q[size_t(x.q_at(b, t, h))], &x.k[size_t(x.k_at(b, j, h))], x.d);
  row.capped = row.raw;
  if (x.softcap > 0)
    for (double& s : row.capped) s = x.softcap * std::tanh(s / x.softcap);
  for (int64_t j = 0; j < x.T_k; ++j)
    if (x.sees(b, t, j)) maximum = std::max(maximum, row.capped[size_t(j)]);
  for (int64_t j = 0; j < x.T_k; ++j)
    if (x.sees(b, t, j)) sum += row.probability[size_t(j)] = std::exp(row.capped[size_t(j)] - maximum);
  if (sum > 0) row.log_sum_exp = maximum + std::log(sum);
  for (double& p : row.probability) p = sum > 0 ? p / sum : 0;
  return row;
}

template <class F>
void for_rows(const Attention& x, const F& f) {
  for (int64_t b = 0; b < x.B; ++b)
    for (int64_t h = 0; h < x.H; ++h)
      for (int64_t t = 0; t < x.T_q; ++t) f(b, t, h, attention_row(x, b, t, h));
}

inline AttentionResult attention_forward(const Attention& x) {
  AttentionResult result;
  result.out.assign(x.q.size(), 0);
  result.largest_logit.assign(size_t(x.H), 0);
  result.entropy.assign(size_t(x.H), 0);
  result.place.resize(size_t(x.H));
  for_rows(x, [&](int64_t b, int64_t t, int64_t h, const AttentionRow& row) {
    result.log_sum_exp.push_back(row.log_sum_exp);
    for (int64_t j = 0; j < x.T_k; ++j) {
      if (!x.sees(b, t, j)) continue;
      const double p = row.probability[size_t(j)];
      for (int64_t c = 0; c < x.d; ++c) result.out[size_t(x.q_at(b, t, h) + c)] += p * x.v[size_t(x.k_at(b, j, h) + c)];
      double& largest = result.largest_logit[size_t(h)];
      if (std::abs(row.raw[size_t(j)]) > largest) result.place[size_t(h)] = {b, t, j};
      largest = std::max(largest, std::abs(row.raw[size_t(j)]));
      if (p > 0) result.entropy[size_t(h)] -= p * std::log(p);
    }
  });
  return result;
}

struct AttentionGradient {
  std::vector<double> dq, dk, dv, d_scale;
};

inline AttentionGradient attention_backward(const Attention& x, const std::vector<double>& d_out) {
  AttentionGradient g;
  g.dq.assign(x.q.size(), 0);
  g.dk.assign(x.k.size(), 0);
  g.dv.assign(x.v.size(), 0);
  g.d_scale.assign(size_t(x.H), 0);
  for_rows(x, [&](int64_t b, int64_t t, int64_t h, const AttentionRow& row) {
    const double* of_out = &d_out[size_t(x.q_at(b, t, h))];
    std::vector<double> dp(size_t(x.T_k), 0.0);
    double mean = 0;  // sum_j p_j dp_j
    for (int64_t j = 0; j < x.T_k; ++j) {
      if (!x.sees(b, t, j)) continue;
      dp[size_t(j)] = dot(of_out, &x.v[size_t(x.k_at(b, j, h))], x.d);
      mean += row.probability[size_t(j)] * dp[size_t(j)];
    }
    for (int64_t j = 0; j < x.T_k; ++j) {
      if (!x.sees(b, t, j)) continue;
      const double p = row.probability[size_t(j)];
      const double slope = x.softcap > 0 ? 1 - std::pow(std::tanh(row.raw[size_t(j)] / x.softcap), 2) : 1;
      const double ds = p * (dp[size_t(j)] - mean) * slope;
      for (int64_t c = 0; c < x.d; ++c) {
        const size_t at_q = size_t(x.q_at(b, t, h) + c), at_k = size_t(x.k_at(b, j, h) + c);
        g.dv[at_k] += p * d_out[at_q];
        g.dq[at_q] += x.scale[size_t(h)] * ds * x.k[at_k];
        g.dk[at_k] += x.scale[size_t(h)] * ds * x.q[at_q];
        g.d_scale[size_t(h)] += ds * x.q[at_q] * x.k[at_k];
      }
    }
  });
  return g;
}

}  // namespace keel::reference
