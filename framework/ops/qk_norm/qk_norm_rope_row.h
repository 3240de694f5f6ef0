// One row of QK-Norm + RoPE, one head of one token, as lanes of a warp hold it. Only .cu files include it.
//
// A power of two of neighbouring lanes holds a row in pieces of N elements, two pieces for each turn of a lane: i and
// i + half where the pair rotates, so that a rotation needs no exchange between lanes; features that do not rotate are
// cut in two halves likewise. Pieces past the end of the row are 0 and are not stored.
#pragma once

#include <cmath>

#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/support/kernel.h"

namespace keel::ops::cuda {

constexpr int kMostQkFeatures = 512;  // of a head

// What the rows of q, or of k, share. Rows of out and dy are dense: [tokens, heads, d].
struct QkSide {
  int heads = 0;
  void* out = nullptr;
  const void* dy = nullptr;
  const float* weight = nullptr;
  int weight_stride = 0;  // between heads: 0 (shared) or d
  int gain_rows = 0;      // of d_gain, by a block of tokens: one for each head or, where they share, group of heads
  float width = 0;        // N: how many features share a statistic, over all ranks
  float replicas = 1;     // R: how many ranks hold a copy of these heads
};

// What all rows share. Row (token, head) starts at x + token * x_stride + head * d; k's heads follow q's.
struct QkPass {
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* dx = nullptr;
  int64_t dx_stride = 0;
  int64_t tokens = 0;
  int d = 0;
  int half = 0;   // rotated / 2
  int lanes = 0;  // that hold a row
  QkNormKind kind = QkNormKind::none;
  bool full = false;
  bool after_rope = false;
  bool cast_before_weight = false;
  float gain_offset = 0;  // 1 where the gain is 1 + weight
  float eps = 0;
  const float* rope = nullptr;
  const int32_t* positions = nullptr;
  const float* statistics = nullptr;  // combined over ranks, scope full: [tokens, columns]
  const float* sums = nullptr;        // as above
  int columns = 0;                    // 2 or 4
  float* d_gain = nullptr;            // [blocks of tokens, gain_rows of both sides, d]
  QkSide sides[2];                    // q, k

  __host__ __device__ int all_heads() const { return sides[0].heads + sides[1].heads; }
  __host__ __device__ int gain_rows() const { return sides[0].gain_rows + sides[1].gain_rows; }
};

// How often a lane turns to the next pair of pieces.
template <int N>
constexpr int kTurns = N == 1 ? kMostQkFeatures / (2 * device::kWarp) : 1;

template <int N>
struct QkValues {
  float of[kTurns<N>][2][N] = {};
};

struct QkPieces {
  int start[2];
  bool exists[2];
  bool rotates;
};

// A lane's place in its warp and block.
struct QkLane {
  int lane;         // within the row
  int row;          // of the block
  int row_of_warp;  // of the warp
  int rows;         // of a warp

  __device__ explicit QkLane(const QkPass& pass) {
    rows = device::kWarp / pass.lanes;
    lane = int(device::lane()) % pass.lanes;
    row_of_warp = int(device::lane()) / pass.lanes;
    row = int(device::thread_index().x) / pass.lanes;
  }
};

template <int N>
__device__ __forceinline__ QkPieces pieces_of(const QkPass& pass, int pair) {
  const int rotating = pass.half / N;
  if (pair < rotating) return {{pair * N, pass.half + pair * N}, {true, true}, true};
  const int rest = (pass.d - 2 * pass.half) / N, pairs = (rest + 1) / 2, own = pair - rotating;
  const int start = 2 * pass.half;
  return {{start + own * N, start + (pairs + own) * N}, {own < pairs, pairs + own < rest}, false};
}

// f(turn, side of the pair, start) for every piece of the lane.
template <int N, class F>
__device__ __forceinline__ void for_pieces(const QkPass& pass, const QkLane& at, const F& f) {
#pragma unroll
  for (int turn = 0; turn < kTurns<N>; ++turn) {
    const QkPieces pieces = pieces_of<N>(pass, turn * pass.lanes + at.lane);
#pragma unroll
    for (int side = 0; side < 2; ++side)
      if (pieces.exists[side]) f(turn, side, pieces.start[side]);
  }
}

template <int N, class T>
__device__ __forceinline__ QkValues<N> load_row(const T* row, const QkPass& pass, const QkLane& at) {
  QkValues<N> values;
  for_pieces<N>(pass, at, [&](int turn, int side, int start) { load(values.of[turn][side], row + start); });
  return values;
}

template <int N, class T>
__device__ __forceinline__ void store_row(T* row, const QkValues<N>& values, const QkPass& pass, const QkLane& at) {
  for_pieces<N>(pass, at, [&](int turn, int side, int start) { store(row + start, values.of[turn][side]); });
}

// Effective gains of a head, in fp32: 1 + a small weight keeps the weight's digits.
template <int N>
__device__ __forceinline__ QkValues<N> gains_of(const QkSide& side, int head, const QkPass& pass, const QkLane& at) {
  QkValues<N> gain;
  for_pieces<N>(pass, at, [&](int turn, int half, int start) {
    if (side.weight) load(gain.of[turn][half], side.weight + head * side.weight_stride + start);
#pragma unroll
    for (int i = 0; i < N; ++i) gain.of[turn][half][i] = side.weight ? gain.of[turn][half][i] + pass.gain_offset : 1.f;
  });
  return gain;
}

// Rotates by the token's angles; `back` is the transposed rotation: the gradient's.
template <bool back, int N>
__device__ __forceinline__ void rotate(QkValues<N>& values, int64_t token, const QkPass& pass, const QkLane& at) {
  if (pass.half == 0) return;
  const float* cosines = pass.rope + int64_t(pass.positions[token]) * 2 * pass.half;
#pragma unroll
  for (int turn = 0; turn < kTurns<N>; ++turn) {
    const QkPieces pieces = pieces_of<N>(pass, turn * pass.lanes + at.lane);
    if (!pieces.rotates) continue;
    float c[N], s[N];
    load(c, cosines + pieces.start[0]);
    load(s, cosines + pieces.start[1]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float a = values.of[turn][0][i], b = values.of[turn][1][i], sine = back ? -s[i] : s[i];
      values.of[turn][0][i] = fmaf(-b, sine, a * c[i]);
      values.of[turn][1][i] = fmaf(a, sine, b * c[i]);
    }
  }
}

// The sum over the lanes of a row, in all of them.
template <class V>
__device__ __forceinline__ V row_sum(V value, const QkPass& pass) {
  for (unsigned bits = unsigned(pass.lanes) / 2; bits > 0; bits /= 2) value += device::shuffle_xor(value, bits);
  return value;
}
// The sum over the rows of a warp, of what a lane has at its place in each.
template <class V>
__device__ __forceinline__ V sum_over_rows(V value, const QkPass& pass) {
  for (unsigned bits = unsigned(pass.lanes); bits < unsigned(device::kWarp); bits *= 2)
    value += device::shuffle_xor(value, bits);
  return value;
}

// The sum of f(turn, side, i) over the elements of a row, in all its lanes.
template <int N, class F>
__device__ __forceinline__ float sum_elements(const QkPass& pass, const QkLane& at, const F& f) {
  float sum = 0;
  for_pieces<N>(pass, at, [&](int turn, int side, int) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum += f(turn, side, i);
  });
  return row_sum(sum, pass);
}

template <int N>
__device__ __forceinline__ float sum_of(const QkValues<N>& x, const QkPass& pass, const QkLane& at) {
  return sum_elements<N>(pass, at, [&](int turn, int side, int i) { return x.of[turn][side][i]; });
}
// sum (x - mean)^2
template <int N>
__device__ __forceinline__ float second_moment(const QkValues<N>& x, float mean, const QkPass& pass, const QkLane& at) {
  return sum_elements<N>(pass, at, [&](int turn, int side, int i) {
    const float centred = x.of[turn][side][i] - mean;
    return centred * centred;
  });
}

// How a row becomes normalised: xhat = (x - mean) * inverse. The difference comes first: it is exact where x is near
// the mean, so that a row of equal values gives 0 and not the rounding of a large product.
struct QkNormalizer {
  float inverse = 1;
  float mean = 0;         // layer only
  float share = 0;        // backward: 1 / (N R), l2: 1 / R
  bool constant = false;  // an l2 row below the floor: its gradient is 0 on purpose

  __device__ __forceinline__ float operator()(float x) const { return (x - mean) * inverse; }
};

__device__ __forceinline__ QkNormalizer normalizer_of(float mean, float second, const QkPass& pass,
                                                      const QkSide& side) {
  if (pass.kind == QkNormKind::l2) {
    const float length = sqrtf(second);
    const bool below = length < pass.eps;
    const float divisor = below ? pass.eps : length;
    return {divisor > 0 ? 1 / divisor : 0, 0, 1 / side.replicas, below};
  }
  const float under_root = second / side.width + pass.eps;
  const float inverse = under_root > 0 ? 1 / sqrtf(under_root) : 0;
  return {inverse, mean, 1 / (side.width * side.replicas), false};
}

// Scope full: of the token's combined statistics.
__device__ __forceinline__ QkNormalizer combined_normalizer(int64_t token, int side, const QkPass& pass) {
  const float* statistics = pass.statistics + token * pass.columns;
  if (pass.kind == QkNormKind::layer)
    return normalizer_of(statistics[2 * side], statistics[2 * side + 1], pass, pass.sides[side]);
  return normalizer_of(0, statistics[side], pass, pass.sides[side]);
}

template <int N>
__device__ __forceinline__ QkNormalizer row_normalizer(const QkValues<N>& x, int64_t token, int side,
                                                       const QkPass& pass, const QkLane& at) {
  if (pass.kind == QkNormKind::none) return {};
  if (pass.full) return combined_normalizer(token, side, pass);
  const float mean = pass.kind == QkNormKind::layer ? sum_of(x, pass, at) / float(pass.d) : 0;
  return normalizer_of(mean, second_moment(x, mean, pass, at), pass, pass.sides[side]);
}

// dx = by_gradient * g + by_x * (x - mean) + constant, which is inverse * (g - (S1 + xhat * S2) * share).
struct QkInputGradient {
  float by_gradient = 0;
  float by_x = 0;
  float mean = 0;
  float constant = 0;
};

__device__ __forceinline__ QkInputGradient input_gradient(const QkNormalizer& n, float s1, float s2) {
  if (n.constant) return {};
  const float second = n.inverse * n.share * s2;
  return {n.inverse, -second * n.inverse, n.mean, -n.inverse * n.share * s1};
}

// From the ranks' combined sums, scope full. S = sum g * x for l2 and rms, and xhat = x * inverse.
__device__ __forceinline__ QkInputGradient combined_input_gradient(const QkNormalizer& n, int64_t token, int side,
                                                                   const QkPass& pass) {
  const float* sums = pass.sums + token * pass.columns;
  if (pass.kind == QkNormKind::layer) return input_gradient(n, sums[2 * side], sums[2 * side + 1]);
  return input_gradient(n, 0, sums[side] * n.inverse);
}

// One head of q or k.
struct QkHead {
  int side;
  int own;  // its number within the side

  __device__ QkHead(int head, const QkPass& pass) {
    side = head < pass.sides[0].heads ? 0 : 1;
    own = side == 0 ? head : head - pass.sides[0].heads;
  }
};

template <class T>
__device__ __forceinline__ const T* x_row(const QkPass& pass, int64_t token, int head) {
  return static_cast<const T*>(pass.x) + token * pass.x_stride + head * pass.d;
}
__device__ __forceinline__ int64_t dense_row(const QkSide& side, const QkPass& pass, int64_t token, int own) {
  return (token * side.heads + own) * pass.d;
}

// x and dy of a row as the norm sees them.
template <class T, int N>
struct QkRow {
  QkValues<N> x, dy;

  __device__ __forceinline__ QkRow(const QkPass& pass, const QkHead& of, int64_t token, int head, const QkLane& at) {
    const QkSide& side = pass.sides[of.side];
    x = load_row<N>(x_row<T>(pass, token, head), pass, at);
    dy = load_row<N>(static_cast<const T*>(side.dy) + dense_row(side, pass, token, of.own), pass, at);
    if (pass.after_rope) rotate<false>(x, token, pass, at);
    if (!pass.after_rope) rotate<true>(dy, token, pass, at);
  }
};

// sum g, g = gain * dy
template <int N>
__device__ __forceinline__ float gradient_sum(const QkValues<N>& g, const QkPass& pass, const QkLane& at) {
  return sum_of(g, pass, at);
}
// sum g * xhat
template <int N>
__device__ __forceinline__ float projection(const QkValues<N>& g, const QkValues<N>& x, const QkNormalizer& normalizer,
                                            const QkPass& pass, const QkLane& at) {
  return sum_elements<N>(
      pass, at, [&](int turn, int half, int i) { return g.of[turn][half][i] * normalizer(x.of[turn][half][i]); });
}
template <int N>
__device__ __forceinline__ void multiply(QkValues<N>& values, const QkValues<N>& by) {
#pragma unroll
  for (int turn = 0; turn < kTurns<N>; ++turn)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < N; ++i) values.of[turn][half][i] *= by.of[turn][half][i];
}

// --- the host's side ----------------------------------------------------------------------------------------------

inline QkSide side_of(ConstTensor weight, const QkNormRopeOptions& options, bool k) {
  QkSide side;
  side.heads = int(k ? options.kv_heads : options.heads);
  side.weight = at<float>(weight);
  side.weight_stride = weight.defined() && weight.dims() == 2 ? int(options.head_dim) : 0;
  const bool full = options.full();
  side.width = float(!full ? options.head_dim : k ? options.full_width_k : options.full_width_q);
  side.replicas = full && k ? float(options.kv_replicas) : 1;
  return side;
}

inline QkPass pass_of(const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  require(options.head_dim <= kMostQkFeatures, "QK-Norm on a GPU takes heads of at most {} features, not {}",
          kMostQkFeatures, options.head_dim);
  QkPass pass;
  pass.x = inputs.qkv.data();
  pass.x_stride = inputs.qkv.stride(0);
  pass.tokens = inputs.qkv.size(0);
  pass.d = int(options.head_dim);
  pass.half = int(options.rotated / 2);
  pass.kind = options.kind;
  pass.full = options.full();
  pass.after_rope = options.after_rope;
  pass.cast_before_weight = options.cast_before_weight;
  pass.gain_offset = options.zero_centered ? 1 : 0;
  pass.eps = options.eps;
  pass.columns = int(options.statistic_columns());
  pass.rope = at<float>(inputs.rope);
  pass.positions = at<int32_t>(inputs.positions);
  pass.sides[0] = side_of(inputs.q_weight, options, false);
  pass.sides[1] = side_of(inputs.k_weight, options, true);
  return pass;
}

// Lanes for a row in pieces of `width`.
inline int lanes_for(const QkPass& pass, int width) {
  const int pairs = pass.half / width + ((pass.d - 2 * pass.half) / width + 1) / 2;
  int lanes = 1;
  while (lanes < pairs && lanes < device::kWarp) lanes *= 2;
  return lanes;
}

// f<T, N>(pass with its lanes) with N = kWide where every piece of every row is a multiple of 16 bytes.
template <class F, class... Tensors>
void dispatch_rows(QkPass pass, const F& f, const ConstTensor& x, const Tensors&... others) {
  const bool fits =
      pass.d % kWide == 0 && pass.half % kWide == 0 && pass.x_stride % kWide == 0 && pass.dx_stride % kWide == 0;
  const int width = fits ? width_of(x, others...) : 1;
  pass.lanes = lanes_for(pass, width);
  dispatch_device_float(x.dtype(),
                        [&]<class T>() { dispatch_width(width, [&]<int N>() { f.template operator()<T, N>(pass); }); });
}

}  // namespace keel::ops::cuda
