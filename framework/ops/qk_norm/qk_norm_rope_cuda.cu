#include "framework/ops/qk_norm/qk_norm_rope_cuda.h"
#include "framework/ops/qk_norm/qk_norm_rope_row.h"
#include "framework/ops/support/partial_sums_cuda.h"

// Bytes from and to memory, T tokens, d features, activations of 2 bytes, scope head:
//   forward   reads x, writes out:          4 T (H + G) d
//   backward  reads x and dy, writes dx:    6 T (H + G) d, + 8 (T / 128) (H + G) d for gains (1 %, less where heads
//             share them)
// and once per token, not per head, 4 rotated + 4 for the rotation. Scope full adds the statistics' pass (2 T (H + G)
// d) and the sums' (4), which the exchange between ranks separates from the others.
//
// A block takes some tokens and a few heads of one side, one head after the other: the gains and their gradients stay
// in registers, and the angles of 32 tokens in the first-level cache. Backward takes 128: each block leaves gains'
// gradients.
namespace keel::ops::cuda {
namespace {

constexpr int kForwardTokens = 32, kTokens = 128;  // of a block
constexpr int kMostHeads = 8;

// f(token, whether it exists) for the block's tokens, a row for each; all lanes of a warp take the same turns.
template <int Tokens, class F>
__device__ __forceinline__ void for_tokens(const QkPass& pass, const QkLane& at, const F& f) {
  const int64_t first = int64_t(device::block_index().x) * Tokens;
  const int64_t last = first + Tokens < pass.tokens ? first + Tokens : pass.tokens;
  for (int64_t start = first; start < last; start += int(device::block_size().x) / pass.lanes) {
    const int64_t token = start + at.row;
    f(token < last ? token : last - 1, token < last);
  }
}

// A block's heads [first, last), one of the groups that `heads` make of each side.
struct QkGroup {
  int side, number, first, last;

  __device__ QkGroup(const QkPass& pass, int heads) {
    const int groups_of_q = (pass.sides[0].heads + heads - 1) / heads;
    number = int(device::block_index().y);
    side = number < groups_of_q ? 0 : 1;
    if (side == 1) number -= groups_of_q;
    const int begin = side == 0 ? 0 : pass.sides[0].heads, end = begin + pass.sides[side].heads;
    first = begin + number * heads;
    last = first + heads < end ? first + heads : end;
  }
};

template <class T>
__device__ __forceinline__ float cast_to(float value, const QkPass& pass) {
  return pass.cast_before_weight ? to_float(from_float<T>(value)) : value;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, N == 1 ? 1 : 3) forward_rows(QkPass pass, int heads) {
  const QkLane at(pass);
  const QkGroup group(pass, heads);
  for (int head = group.first; head < group.last; ++head) {
    const QkHead of(head, pass);
    const QkSide& side = pass.sides[of.side];
    const QkValues<N> gain = gains_of<N>(side, of.own, pass, at);
    for_tokens<kForwardTokens>(pass, at, [&](int64_t token, bool exists) {
      QkValues<N> x = load_row<N>(x_row<T>(pass, token, head), pass, at);
      if (pass.after_rope) rotate<false>(x, token, pass, at);
      const QkNormalizer normalizer = row_normalizer(x, token, of.side, pass, at);
      for_pieces<N>(pass, at, [&](int turn, int half, int) {
#pragma unroll
        for (int i = 0; i < N; ++i)
          x.of[turn][half][i] = cast_to<T>(normalizer(x.of[turn][half][i]), pass) * gain.of[turn][half][i];
      });
      if (!pass.after_rope) rotate<false>(x, token, pass, at);
      if (exists) store_row(static_cast<T*>(side.out) + dense_row(side, pass, token, of.own), x, pass, at);
    });
  }
}

// Leaves the block's sum of gain gradients in a row of pass.d_gain. `shared` holds [warps, d].
template <int N>
__device__ __forceinline__ void leave_gain_gradient(const QkValues<N>& d_gain, int row, const QkPass& pass,
                                                    const QkLane& at) {
  float* shared = device::shared_memory<float>();
  const int warp = int(device::thread_index().x) / device::kWarp;
  device::sync_threads();  // nobody still reads the last head's
  QkValues<N> sum = d_gain;
#pragma unroll
  for (int turn = 0; turn < kTurns<N>; ++turn)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < N; ++i) sum.of[turn][half][i] = sum_over_rows(sum.of[turn][half][i], pass);
  if (at.row_of_warp == 0) store_row(shared + warp * pass.d, sum, pass, at);
  device::sync_threads();
  float* out = pass.d_gain + (int64_t(device::block_index().x) * pass.gain_rows() + row) * pass.d;
  for (int i = int(device::thread_index().x); i < pass.d; i += int(device::block_size().x)) {
    float total = 0;
    for (int other = 0; other < int(device::block_size().x) / device::kWarp; ++other)
      total += shared[other * pass.d + i];
    out[i] = total;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, N == 1 ? 1 : 2) backward_rows(QkPass pass, int heads) {
  const QkLane at(pass);
  const QkGroup group(pass, heads);
  const bool layer = pass.kind == QkNormKind::layer;
  QkValues<N> d_gain;
  for (int head = group.first; head < group.last; ++head) {
    const QkHead of(head, pass);
    const QkSide& side = pass.sides[of.side];
    const QkValues<N> gain = gains_of<N>(side, of.own, pass, at);
    for_tokens<kTokens>(pass, at, [&](int64_t token, bool exists) {
      auto [x, g] = QkRow<T, N>(pass, of, token, head, at);
      const QkNormalizer normalizer = row_normalizer(x, token, of.side, pass, at);
      for_pieces<N>(pass, at, [&](int turn, int half, int) {
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (side.weight && exists)
            d_gain.of[turn][half][i] =
                fmaf(cast_to<T>(normalizer(x.of[turn][half][i]), pass), g.of[turn][half][i], d_gain.of[turn][half][i]);
      });
      multiply(g, gain);
      QkInputGradient f{1, 0, 0, 0};
      if (pass.full)
        f = combined_input_gradient(normalizer, token, of.side, pass);
      else if (pass.kind != QkNormKind::none)
        f = input_gradient(normalizer, layer ? gradient_sum(g, pass, at) : 0, projection(g, x, normalizer, pass, at));
      for_pieces<N>(pass, at, [&](int turn, int half, int) {
#pragma unroll
        for (int i = 0; i < N; ++i)
          x.of[turn][half][i] =
              fmaf(g.of[turn][half][i], f.by_gradient, fmaf(x.of[turn][half][i] - f.mean, f.by_x, f.constant));
      });
      if (pass.after_rope) rotate<true>(x, token, pass, at);
      if (exists) store_row(static_cast<T*>(pass.dx) + token * pass.dx_stride + head * pass.d, x, pass, at);
    });
    const bool shared = side.weight_stride == 0;
    if (!side.weight || (shared && head + 1 < group.last)) continue;
    leave_gain_gradient(d_gain, (of.side == 0 ? 0 : pass.sides[0].gain_rows) + (shared ? group.number : of.own), pass,
                        at);
    d_gain = {};
  }
}

// partial [blocks of tokens, heads] = sum x^2 of the block's tokens.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) head_squares(double* partial, QkPass pass, int heads) {
  const QkLane at(pass);
  const QkGroup group(pass, heads);
  for (int head = group.first; head < group.last; ++head) {
    double own = 0;
    for_tokens<kTokens>(pass, at, [&](int64_t token, bool exists) {
      const float squares = second_moment(load_row<N>(x_row<T>(pass, token, head), pass, at), 0, pass, at);
      if (exists && at.lane == 0) own += double(squares);
    });
    own = block_sum(own, device::shared_memory<double>());
    if (device::thread_index().x == 0) partial[int64_t(device::block_index().x) * pass.all_heads() + head] = own;
  }
}

struct MeanSquares {
  float *q, *k;
  int heads, kv_heads;
  double elements;  // of a head, all tokens
};
__global__ void __launch_bounds__(kThreads) add_squares(MeanSquares out, const double* partial, int blocks) {
  const int all = out.heads + out.kv_heads;
  for_elements<1>(all, [&](int64_t head, auto) {
    double total = 0;
    for (int block = 0; block < blocks; ++block) total += partial[int64_t(block) * all + head];
    float* to = head < out.heads ? out.q + head : out.k + (head - out.heads);
    *to += float(total / out.elements);
  });
}

// --- the host's side ----------------------------------------------------------------------------------------------

int64_t token_blocks(const QkPass& pass, int tokens) {
  return (pass.tokens + tokens - 1) / tokens;
}

// Heads for a block: as many as leave each multiprocessor 16 blocks, so that the last ones find few multiprocessors
// idle.
int heads_per_block(Device device, const QkPass& pass, int tokens) {
  const int64_t blocks = token_blocks(pass, tokens) * pass.all_heads();
  return int(std::clamp<int64_t>(blocks / (int64_t(keel::cuda::multiprocessors(device)) * 16), 1, kMostHeads));
}

int groups_of(const QkSide& side, int heads) {
  return (side.heads + heads - 1) / heads;
}

dim3 grid_of(const QkPass& pass, int heads, int tokens) {
  return dim3(unsigned(token_blocks(pass, tokens)),
              unsigned(groups_of(pass.sides[0], heads) + groups_of(pass.sides[1], heads)));
}

// No more than a row for each token of a block.
unsigned threads_of(const QkPass& pass, int tokens) {
  const int64_t rows = std::min<int64_t>(pass.tokens, tokens);
  const int64_t wanted = (rows * pass.lanes + device::kWarp - 1) / device::kWarp * device::kWarp;
  return unsigned(std::clamp<int64_t>(wanted, device::kWarp, kThreads));
}

// What adds up to a side's weight gradient: all rows where heads share the weight.
PartialColumns gain_sums(Tensor d_weight, const QkPass& pass, int side) {
  if (!d_weight.defined()) return {};
  const QkSide& own = pass.sides[side];
  const float* partial = pass.d_gain + (side == 0 ? 0 : pass.sides[0].gain_rows * pass.d);
  return {at<float>(d_weight), partial, int(d_weight.elements()), own.weight_stride == 0 ? own.gain_rows : 1, pass.d};
}

}  // namespace

void qk_norm_rope_forward(Tensor q_out, Tensor k_out, const QkNormRopeInputs& inputs, ConstTensor statistics,
                          const QkNormRopeOptions& options) {
  QkPass all = pass_of(inputs, options);
  all.statistics = at<float>(statistics);
  all.sides[0].out = q_out.data();
  all.sides[1].out = k_out.data();
  const auto run = [&]<class T, int N>(const QkPass& pass) {
    const int heads = heads_per_block(q_out.device(), pass, kForwardTokens);
    launch(forward_rows<T, N>, grid_of(pass, heads, kForwardTokens), threads_of(pass, kForwardTokens), 0,
           keel::cuda::current_stream(q_out.device()), pass, heads);
  };
  dispatch_rows(all, run, inputs.qkv, q_out, k_out, inputs.q_weight, inputs.k_weight, inputs.rope);
}

void qk_norm_rope_backward(const QkNormRopeGradients& gradients, const QkNormRopeBackward& call, ConstTensor sums) {
  const auto& [dq_out, dk_out, inputs, statistics, options] = call;
  const Tensor& d_qkv = gradients.d_qkv;
  const Device device = d_qkv.device();
  QkPass all = pass_of(inputs, options);
  all.statistics = at<float>(statistics);
  all.sums = at<float>(sums);
  all.sides[0].dy = dq_out.data();
  all.sides[1].dy = dk_out.data();
  all.dx = d_qkv.data();
  all.dx_stride = d_qkv.stride(0);
  const bool weights = inputs.q_weight.defined() || inputs.k_weight.defined();
  const int heads = heads_per_block(device, all, kTokens);
  for (QkSide& side : all.sides) side.gain_rows = side.weight_stride == 0 ? groups_of(side, heads) : side.heads;
  const int64_t blocks = token_blocks(all, kTokens);
  const int block_stride = all.gain_rows() * all.d;
  if (weights)
    all.d_gain =
        reinterpret_cast<float*>(keel::cuda::workspace(device, blocks * block_stride * int64_t(sizeof(float))));
  const cudaStream_t stream = keel::cuda::current_stream(device);
  const auto run = [&]<class T, int N>(const QkPass& pass) {
    const size_t shared_bytes =
        weights ? threads_of(pass, kTokens) / device::kWarp * size_t(pass.d) * sizeof(float) : 0;
    launch(backward_rows<T, N>, grid_of(pass, heads, kTokens), threads_of(pass, kTokens), shared_bytes, stream, pass,
           heads);
  };
  dispatch_rows(all, run, inputs.qkv, dq_out, dk_out, d_qkv, inputs.q_weight, inputs.k_weight, inputs.rope);
  if (!weights) return;
  add_partial_columns(gain_sums(gradients.d_q_weight, all, 0), gain_sums(gradients.d_k_weight, all, 1), blocks,
                      block_stride, device);
}

void qk_add_mean_squares(Tensor q, Tensor k, ConstTensor qkv, const QkNormRopeOptions& options) {
  const Device device = qkv.device();
  const cudaStream_t stream = keel::cuda::current_stream(device);
  QkNormRopeOptions plain = options;
  plain.rotated = 0;
  const QkPass all = pass_of({qkv, {}, {}, {}, {}}, plain);
  const int64_t blocks = token_blocks(all, kTokens);
  double* partial =
      reinterpret_cast<double*>(keel::cuda::workspace(device, blocks * all.all_heads() * int64_t(sizeof(double))));
  const auto run = [&]<class T, int N>(const QkPass& pass) {
    const int heads = heads_per_block(device, pass, kTokens);
    launch(head_squares<T, N>, grid_of(pass, heads, kTokens), threads_of(pass, kTokens),
           threads_of(pass, kTokens) / device::kWarp * sizeof(double), stream, partial, pass, heads);
  };
  dispatch_rows(all, run, qkv);
  const MeanSquares out{at<float>(q), at<float>(k), int(options.heads), int(options.kv_heads),
                        double(std::max<int64_t>(all.tokens, 1) * options.head_dim)};
  launch(add_squares, blocks_for(device, all.all_heads()), kThreads, 0, stream, out, partial, int(blocks));
}

}  // namespace keel::ops::cuda
