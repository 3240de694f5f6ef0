// The kernels under the CPU twins of qk_norm_rope.h: one thread, a range of tokens, the widest vectors this CPU has.
#pragma once

#include "framework/ops/qk_norm/qk_norm_rope.h"

namespace keel::ops::cpu {

// One side of a pass, q or k. Addresses are those of token 0, head 0; strides are in elements, between tokens.
struct QkSide {
  int64_t heads = 0;
  const void* x = nullptr;  // before the norm
  int64_t x_stride = 0;
  void* out = nullptr;       // [n, heads, d]; forward
  const void* dy = nullptr;  // [n, heads, d]; backward
  void* dx = nullptr;        // backward
  int64_t dx_stride = 0;
  const float* gain = nullptr;  // effective gains, 1 where there are no weights
  int64_t gain_stride = 0;      // between heads: 0 (shared) or d
  float width = 0;              // N: how many features share a statistic, over all ranks
  float replicas = 1;           // R: how many ranks hold a copy of these heads
};

// What both sides share.
struct QkPass {
  DType dtype = DType::f32;  // of x, out, dy, dx
  QkNormKind kind = QkNormKind::none;
  bool full = false;
  bool after_rope = false;
  bool cast_before_weight = false;
  float eps = 0;
  int64_t d = 0;
  int64_t half = 0;  // rotated / 2
  const float* rope = nullptr;
  const int32_t* positions = nullptr;
  const float* statistics = nullptr;  // combined over ranks, scope full: [n, columns]
  const float* sums = nullptr;        // as above
  int64_t columns = 0;                // 2 or 4
  QkSide sides[2];                    // q, k
};

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// How a row becomes normalised: xhat = (x - mean) * inverse. The difference comes first: it is exact where x is near
// the mean, so that a row of equal values gives 0 and not the rounding of a large product.
struct Normalizer {
  float inverse = 1;
  float mean = 0;         // layer only
  float share = 0;        // backward: 1 / (N R), l2: 1 / R
  bool constant = false;  // an l2 row below the floor: its gradient is 0 on purpose
};

// Memory of one thread; `heads` is the larger of both sides'.
struct QkScratch {
  float* x = nullptr;                       // [heads, d]
  float* dy = nullptr;                      // [heads, d]
  Normalizer* normalizers = nullptr;        // [heads]
  float* d_gain[2] = {nullptr, nullptr};    // added to, laid out like the gains; null where there are no weights
  double* squares[2] = {nullptr, nullptr};  // [heads], added to
};

void qk_forward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch);
void qk_backward_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch);
// Scope full: rows of `out` [n, columns], as qk_norm_rope.h describes them.
void qk_statistics_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch);
void qk_sums_tokens(float* out, const QkPass& pass, TokenRange tokens, const QkScratch& scratch);
void qk_squares_tokens(const QkPass& pass, TokenRange tokens, const QkScratch& scratch);

// Mean and centred second moment of a set of features of this weight (their number, or a share of it).
struct Moments {
  double weight = 0;
  double mean = 0;
  double second = 0;
};
// Of both sets together (Chan, Golub & LeVeque 1979).
inline Moments merge(const Moments& a, const Moments& b) {
  double weight = a.weight + b.weight;
  if (weight == 0) return a;
  double shift = b.mean - a.mean, share = b.weight / weight;
  return {weight, a.mean + shift * share, a.second + b.second + shift * shift * a.weight * share};
}

}  // namespace keel::ops::cpu
