#include "framework/ops/qk_norm/qk_norm_rope_cuda.h"
#include "framework/ops/qk_norm/qk_norm_rope_row.h"

// Scope full: what the ranks combine before forward (2 T (H + G) d bytes from memory) and before backward (4).
namespace keel::ops::cuda {
namespace {

constexpr int kWarps = 4;  // of a block

// A warp takes a token's side, several heads at a time: f(head, whether it exists).
template <class F>
__device__ __forceinline__ void for_heads_of_side(const QkSide& side, const QkLane& at, const F& f) {
  for (int start = 0; start < side.heads; start += at.rows) {
    const int own = start + at.row_of_warp;
    f(own < side.heads ? own : side.heads - 1, own < side.heads);
  }
}

// The warp's token and side, token = tokens past the end.
struct QkPlace {
  int64_t token;
  int side;
  int first_head;

  __device__ explicit QkPlace(const QkPass& pass) {
    const int64_t warp = int64_t(device::block_index().x) * kWarps + device::thread_index().x / device::kWarp;
    token = warp / 2;
    side = int(warp % 2);
    first_head = side == 0 ? 0 : pass.sides[0].heads;
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kWarps* device::kWarp) side_statistics(float* out, QkPass pass) {
  const QkLane at(pass);
  const QkPlace place(pass);
  if (place.token >= pass.tokens) return;
  const QkSide& side = pass.sides[place.side];
  const auto total = [&](const auto& of_row) {
    double sum = 0;
    for_heads_of_side(side, at, [&](int own, bool exists) {
      QkValues<N> x = load_row<N>(x_row<T>(pass, place.token, place.first_head + own), pass, at);
      if (pass.after_rope) rotate<false>(x, place.token, pass, at);
      const float value = of_row(x);
      if (exists) sum += double(value);
    });
    return sum_over_rows(sum, pass);
  };
  const bool layer = pass.kind == QkNormKind::layer;
  float mean = 0;
  if (layer)
    mean = float(total([&](const QkValues<N>& x) { return sum_of(x, pass, at); }) / (double(side.heads) * pass.d));
  const double second = total([&](const QkValues<N>& x) { return second_moment(x, mean, pass, at); });
  if (device::lane() != 0) return;
  float* row = out + place.token * pass.columns;
  if (layer) row[2 * place.side] = mean;
  row[layer ? 2 * place.side + 1 : place.side] = float(layer ? second : second / double(side.replicas));
}

// l2 and rms want S = sum g * x: xhat with nothing done to x.
template <class T, int N>
__global__ void __launch_bounds__(kWarps* device::kWarp, N == 1 ? 1 : 5) side_sums(float* out, QkPass pass) {
  const QkLane at(pass);
  const QkPlace place(pass);
  if (place.token >= pass.tokens) return;
  const QkSide& side = pass.sides[place.side];
  const bool layer = pass.kind == QkNormKind::layer;
  const QkNormalizer normalizer = layer ? combined_normalizer(place.token, place.side, pass) : QkNormalizer{};
  double first = 0, second = 0;
  for_heads_of_side(side, at, [&](int own, bool exists) {
    const int head = place.first_head + own;
    auto [x, g] = QkRow<T, N>(pass, QkHead(head, pass), place.token, head, at);
    multiply(g, gains_of<N>(side, own, pass, at));
    const float s1 = gradient_sum(g, pass, at), s2 = projection(g, x, normalizer, pass, at);
    if (exists) {
      first += double(s1);
      second += double(s2);
    }
  });
  first = sum_over_rows(first, pass);
  second = sum_over_rows(second, pass);
  if (device::lane() != 0) return;
  float* row = out + place.token * pass.columns;
  if (layer) row[2 * place.side] = float(first);
  row[layer ? 2 * place.side + 1 : place.side] = float(second);
}

// gathered [ranks, tokens, 4] to merged [tokens, 4] (Chan, Golub & LeVeque 1979), one thread for a token's side. A
// rank's features weigh weights.q or weights.k, a share of one where KV heads have replicas.
struct MergeWeights {
  double q, k;
  double replicas;  // of k
};
__global__ void __launch_bounds__(kThreads)
    merge_statistics(float* merged, const float* gathered, MergeWeights weights, int64_t ranks, int64_t tokens) {
  for_elements<1>(2 * tokens, [&](int64_t i, auto) {
    const int side = int(i % 2);
    const double weight = side == 0 ? weights.q : weights.k, replicas = side == 0 ? 1 : weights.replicas;
    double total = 0, mean = 0, second = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const float* own = gathered + rank * tokens * 4 + 2 * i;
      const double shift = double(own[0]) - mean, share = weight / (total + weight);
      mean += shift * share;
      second += double(own[1]) / replicas + shift * shift * total * share;
      total += weight;
    }
    merged[2 * i] = float(mean);
    merged[2 * i + 1] = float(second);
  });
}

unsigned blocks_of_sides(const QkPass& pass) {
  return unsigned((2 * pass.tokens + kWarps - 1) / kWarps);
}

}  // namespace

void qk_norm_partial_statistics(Tensor statistics, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  const auto run = [&]<class T, int N>(const QkPass& pass) {
    launch(side_statistics<T, N>, blocks_of_sides(pass), kWarps * device::kWarp, 0,
           keel::cuda::current_stream(statistics.device()), at<float>(statistics), pass);
  };
  dispatch_rows(pass_of(inputs, options), run, inputs.qkv, inputs.rope);
}

void qk_norm_merge_statistics(Tensor merged, ConstTensor gathered, const QkNormRopeOptions& options) {
  const double replicas = double(options.kv_replicas), d = double(options.head_dim);
  const MergeWeights weights{double(options.heads) * d, double(options.kv_heads) * d / replicas, replicas};
  const int64_t tokens = gathered.size(1);
  launch(merge_statistics, blocks_for(merged.device(), 2 * tokens), kThreads, 0,
         keel::cuda::current_stream(merged.device()), at<float>(merged), at<float>(gathered), weights, gathered.size(0),
         tokens);
}

void qk_norm_backward_sums(Tensor sums, const QkNormRopeBackward& call) {
  const auto& [dq_out, dk_out, inputs, statistics, options] = call;
  QkPass all = pass_of(inputs, options);
  all.statistics = at<float>(statistics);
  all.sides[0].dy = dq_out.data();
  all.sides[1].dy = dk_out.data();
  const auto run = [&]<class T, int N>(const QkPass& pass) {
    launch(side_sums<T, N>, blocks_of_sides(pass), kWarps * device::kWarp, 0, keel::cuda::current_stream(sums.device()),
           at<float>(sums), pass);
  };
  dispatch_rows(all, run, inputs.qkv, dq_out, dk_out, inputs.q_weight, inputs.k_weight, inputs.rope);
}

}  // namespace keel::ops::cuda
