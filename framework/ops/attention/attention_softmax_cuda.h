// The running softmax of attention's forward on a GPU (Milakov & Gimelshein 2018), from products q . k in registers to
// probabilities there. Only attention_cuda.cu includes it.
//
// Per score it costs a maximum, a maximum of |q . k|, one FMA and one exp2: exp(g s - maximum) = exp2(s c - m c) with
// c = g log2(e). The FMA rounds once, after the subtraction, so that whatever m c rounds to is a common factor of the
// row, which the sum has, too, and the log-sum-exp is told of.
#pragma once

#include "framework/ops/attention/attention_problem_cuda.h"

namespace keel::ops::cuda {

// g as the kernels use it: products are multiplied by `sign` first, where that is not 1, and are then scores by a
// factor above 0, so that the largest product is the largest score.
struct LogitScale {
  float sign, size;
  float softcap;   // or 0
  float per_cap;   // a score over the soft-cap, by the product
  float exponent;  // c: of what scores_of leaves

  __device__ LogitScale(float g, float softcap) : sign(1), size(g), softcap(softcap) {
    if (!(g > 0)) sign = g < 0 ? -1.f : g, size = g < 0 ? -g : 1.f;  // 0 and NaN are signs here
    per_cap = softcap != 0 ? size / softcap : 0.f;
    exponent = softcap != 0 ? kLog2E : size * kLog2E;
  }
};

// Of a lane's 2 M rows; sums are of the lane's own columns. In bf16 they lie in shared memory between tiles: products
// need all registers.
template <int M>
struct alignas(8 * M) RowSums {
  float sum[M][2] = {};
  float weighted[M][2] = {};  // sum of p log2(p), relative to the same factor as `sum`, for the entropy
};

template <int M>
struct Softmax {
  RowSums<M>* sums;
  float maximum[M][2];
  float largest;  // |q . k|

  __device__ __forceinline__ void clear() {
    *sums = {};
    largest = 0;
#pragma unroll
    for (int m = 0; m < M; ++m) maximum[m][0] = maximum[m][1] = -INFINITY;
  }
};

// exp2((s - away) c - shift) is a row's exp(score - maximum), but for the factor 2^residual. Where m c is large, what
// it rounds to is no small factor, and the maximum is subtracted first: an instruction more.
struct RowBase {
  float away = 0, shift = 0;

  __device__ RowBase(float maximum, float c) {
    constexpr float kFar = 4096;
    if (maximum == -INFINITY) return;  // a row that has seen nothing yet
    shift = maximum * c;
    if (!(fabsf(shift) < kFar)) away = maximum, shift = 0;
  }
  __device__ bool far() const { return away != 0; }
  __device__ float residual(float maximum, float c) const {
    return maximum == -INFINITY || far() ? 0.f : fmaf(maximum, c, -shift);
  }
};

// The keys of a tile and the warp's rows.
struct TilePlace {
  int b, first_row, first_key;
};

// Products q . k to what softmax takes: capped scores, or products as they are; -infinity where hidden. `kWhole`: no
// score is.
template <bool kWhole, bool kCapped, int M, int N>
__device__ __forceinline__ void scores_of(float (&s)[M][N][4], Softmax<M>& state, const TilePlace& at,
                                          const AttentionProblem& problem, const LogitScale& scale) {
  const int column = at.first_key + int(device::lane()) % 4 * 2;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    LaneView view;
    if constexpr (!kWhole) view = LaneView(problem, at.b, at.first_row + kWarpRows * m);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool sees = kWhole || view.row[i / 2].holds(column + 8 * n + i % 2);
        float& score = s[m][n][i];
        state.largest = sees ? fmaxf(state.largest, fabsf(score)) : state.largest;
        if constexpr (kCapped) score = scale.softcap * tanhf(score * scale.per_cap);
        score = sees ? score : -INFINITY;
      }
  }
}

template <int M, int N>
__device__ __forceinline__ void scores_of(float (&s)[M][N][4], Softmax<M>& state, const TilePlace& at, bool whole,
                                          const AttentionProblem& problem, const LogitScale& scale) {
  if (scale.sign != 1) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] *= scale.sign;
  }
  if (scale.softcap != 0)
    scores_of<false, true>(s, state, at, problem, scale);
  else if (whole)
    scores_of<true, false>(s, state, at, problem, scale);
  else
    scores_of<false, false>(s, state, at, problem, scale);
}

// s: a row's scores [N][2 i, 2 i + 1].
template <int N>
__device__ __forceinline__ float row_maximum(const float (&s)[N][4], int i, float maximum) {
#pragma unroll
  for (int n = 0; n < N; ++n) maximum = fmaxf(maximum, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
  return quad_max(maximum);
}

// Scores to exp(score - maximum), and out [16 M, 8 K] to the new maximum.
template <bool kEntropy, int M, int N, int K>
__device__ __forceinline__ void exponentials_of(float (&s)[M][N][4], float (&out)[M][K][4], Softmax<M>& state,
                                                float c) {
  RowSums<M> sums = *state.sums;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float before = state.maximum[m][i], maximum = row_maximum(s[m], i, before);
      const RowBase base(maximum, c);
      // From one factor to the other: from 0, where nothing was seen.
      const float rise = base.far() ? (before - maximum) * c : before * c - base.shift,
                  factor = device::fast_exp2(rise);
      state.maximum[m][i] = maximum;
      if constexpr (kEntropy)
        sums.weighted[m][i] = sums.sum[m][i] == 0 ? 0.f : factor * (sums.weighted[m][i] + sums.sum[m][i] * rise);
      sums.sum[m][i] *= factor;
      if (device::any(factor != 1)) {  // after the first tiles, maxima seldom rise
#pragma unroll
        for (int n = 0; n < K; ++n) {
          out[m][n][2 * i] *= factor;
          out[m][n][2 * i + 1] *= factor;
        }
      }
      if (device::any(base.far())) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          s[m][n][2 * i] -= base.away;
          s[m][n][2 * i + 1] -= base.away;
        }
      }
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j) {
          const float t = fmaf(s[m][n][j], c, -base.shift), p = device::fast_exp2(t);
          if constexpr (kEntropy) sums.weighted[m][i] += p == 0 ? 0.f : p * t;
          sums.sum[m][i] += p;
          s[m][n][j] = p;
        }
    }
  *state.sums = sums;
}

}  // namespace keel::ops::cuda
