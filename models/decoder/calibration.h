// Gains and logit scales that put QK-Norm (rms, scope head) into attention trained without it, changing its logits as
// little as they can be changed:
//
//   before   s = g0 q . k          after   s' = g0 w[h] (gamma_q[h] q^) . (gamma_k[g] k^)     q^ = q / rms(q)
//
// A norm keeps directions and loses lengths, so s' is a sum over rotated pairs i of c_i (q^ . k^)_i, and the c that
// change attention least over rows of real text are a least-squares problem per head: of s' - s, its variance under the
// row's own probabilities, which is twice the divergence between the two softmaxes to second order. Gains within a
// rotated pair are equal, so that they commute with the rotation.
#pragma once

#include "models/decoder/decoder_config.h"

namespace keel::models {

struct CalibratedGains {
  std::vector<float> q;      // [H, d]: gamma_q
  std::vector<float> k;      // [G, d]: gamma_k, the root mean square of k
  std::vector<float> scale;  // [H]: w
  double error = 0;          // root of that variance of s' - s over that of s, over all heads
};

class QkCalibration {
 public:
  // Of one layer of the unnormalised model.
  QkCalibration(const DecoderConfig& config, int64_t layer);

  // One micro-batch on one rank: fp32 q [n, H, d] and k [n, G, d], rotated, as attention was given them; first_key as
  // in TokenBatch, or undefined.
  void add(ConstTensor q, ConstTensor k, ConstTensor first_key, nn::BatchShape batch);
  CalibratedGains gains() const;

 private:
  // The normal equations of one head.
  struct Head {
    std::vector<double> a, b;  // [m, m], [m]
    double target = 0;         // sum of w s^2
    double q_squares = 0;
  };
  struct Row;

  int64_t unit_of(int64_t feature) const;
  static void add_equation(Head& head, double weight, const double* units, double logit);
  void add_row(Head& head, const Row& row);
  std::vector<double> solve(const Head& head) const;

  int64_t heads_, kv_heads_, d_, rotated_, units_, window_;
  double scale_, softcap_;
  std::vector<Head> sums_;
  std::vector<double> k_squares_;
  int64_t rows_ = 0;
};

}  // namespace keel::models
