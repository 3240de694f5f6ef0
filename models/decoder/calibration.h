// Gains and logit scales that put QK-Norm (rms, scope head) into attention trained without it, changing attention as
// little as it can be changed:
//
//   before   s = g[h] q . k        after   s' = g0 w[h] (gamma_q[h] q^) . (gamma_k[g] k^)     q^ = q / rms(q)
//
// where rms(q) is that of the row before its rotation: an amplitude of the rotation (YaRN) multiplies s' as it does s.
// A norm keeps directions and loses lengths, so s' is a sum over rotated pairs i of c_i (q^ . k^)_i, and the divergence
// of softmax(s') from softmax(s), summed over rows of real text, is a convex function of each head's c: Newton's
// method, one pass over the text per step. Gains within a rotated pair are equal, so that they commute with the
// rotation.
//
// A row costs (d/2)^2 per key that it sees, so of long texts only some rows are looked at, one from every stretch of
// `every` of them; what q and k are in size is taken from all.
#pragma once

#include "framework/comm/communicator.h"
#include "models/decoder/decoder_config.h"

namespace keel::models {

struct CalibratedGains {
  std::vector<float> q;      // [H, d]: gamma_q
  std::vector<float> k;      // [G, d]: gamma_k, the root mean square of k
  std::vector<float> scale;  // [H]: w
  double divergence = 0;     // of attention from what it was: nats per row, the mean over all heads
};

// H and G are those of this rank.
struct CalibrationOptions {
  int64_t heads = 0, kv_heads = 0;
  std::span<const float> scale = {};  // [H], [1] or empty: the learned w of the unnormalised model, g = g0 w
  int64_t every = 1;
};

class QkCalibration {
 public:
  // Of one layer of the unnormalised model.
  QkCalibration(const DecoderConfig& config, int64_t layer, const CalibrationOptions& options);

  // One micro-batch: fp32 q [n, H, d] and k [n, G, d], rotated, as attention was given them; first_key as in
  // TokenBatch, or undefined. `first_row`: how many rows of the whole text come before it.
  void add(ConstTensor q, ConstTensor k, ConstTensor first_key, nn::BatchShape batch, int64_t first_row);
  // After every pass over the text, of which ranks of `data` have seen parts: the first finds the sizes of q and k,
  // each further one takes a step. Collective.
  void improve(comm::Communicator& data);
  // The best of all passes but the first.
  CalibratedGains gains() const;
  // That a step of each head is taken from.
  int64_t rows_of_a_pass() const { return passes_ > 1 ? fitted_ / (passes_ - 1) : 0; }

 private:
  struct Head {
    double scale = 0;                       // g
    std::vector<double> c, best;            // [m]; empty before the first pass has ended
    std::vector<double> gradient, hessian;  // [m], [m, m] of the pass at hand
    double divergence = 0, least = HUGE_VAL;
    double q_squares = 0;
  };
  struct Row;

  int64_t unit_of(int64_t feature) const;
  double mean_square(const float* x) const;
  bool is_looked_at(int64_t row) const;
  void add_sizes(const float* q, const float* k);
  double capped(double s) const;
  void add_row(Head& head, const Row& row) const;
  void step(Head& head) const;
  void add_up(comm::Communicator& data);

  int64_t heads_, kv_heads_, d_, rotated_, units_, window_, every_;
  double amplitude_, scale_, softcap_;  // m, g0
  std::vector<Head> sums_;
  std::vector<double> k_squares_;
  // Rows of the pass at hand that this rank has looked at; of the whole first pass, and of all others.
  int64_t seen_ = 0, rows_ = 0, fitted_ = 0;
  int64_t passes_ = 0;
};

}  // namespace keel::models
