#include "framework/ops/norm_cuda.h"
#include "framework/ops/support/kernel.h"
#include "framework/ops/support/partial_sums_cuda.h"

// A block per row. A thread holds its share of the row in registers, Packs of N features; rows that are too wide for
// that (Packs = 0), or whose addresses fit no wide loads, come from memory again in each pass. A thread reads back only
// what it wrote itself, so the passes need no barriers but those of the sums.
namespace keel::ops::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / device::kWarp;

struct Parameters {
  const float* weight;
  const float* bias;  // null where there is none
  float offset;       // the gain is offset + weight
  float eps;
  bool layer;
  int64_t rows;
  int width;
};

Parameters parameters_of(const NormWeights& weights, const NormOptions& options, const ConstTensor& x) {
  return {at<float>(weights.weight),
          at<float>(weights.bias),
          options.zero_centered ? 1.f : 0.f,
          options.eps,
          options.kind == NormKind::layer,
          x.size(0),
          int(x.size(1))};
}

// f(pack, i) for this thread's packs of N features of a row, i the first.
template <int N, int Packs, class F>
__device__ __forceinline__ void for_row(int width, const F& f) {
  const int first = int(device::thread_index().x) * N, step = int(device::block_size().x) * N;
  if constexpr (Packs == 0) {
    for (int i = first; i < width; i += step) f(0, i);
  } else {
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack)
      if (first + pack * step < width) f(pack, first + pack * step);
  }
}

template <int N, int Packs>
using Kept = float[Packs == 0 ? 1 : Packs][N];

template <class X, class Y>
struct Forward {
  Y* y;
  X* sum;  // null without a branch
  float *inverse, *mean;
  const X* x;
  const Y* branch;
};

// Shared memory: [kMostWarps] for sums.
template <class X, class Y, int N, int Packs>
__global__ void __launch_bounds__(kMostThreads, Packs > 1 ? 1 : 2) forward_rows(Forward<X, Y> a, Parameters p) {
  float* partial = device::shared_memory<float>();
  for (int64_t row = device::block_index().x; row < p.rows; row += device::grid_size().x) {
    const int64_t begin = row * p.width;
    Kept<N, Packs> kept;
    const auto row_again = [&](const auto& f) {
      for_row<N, Packs>(p.width, [&](int pack, int i) {
        if (Packs == 0) load(kept[pack], (a.sum ? a.sum : a.x) + begin + i);
        f(kept[pack], i);
      });
    };
    float total = 0;
    for_row<N, Packs>(p.width, [&](int pack, int i) {
      float(&x)[N] = kept[pack];
      load(x, a.x + begin + i);
      if (a.sum) {
        float branch[N];
        load(branch, a.branch + begin + i);
#pragma unroll
        for (int j = 0; j < N; ++j) x[j] = to_float(from_float<X>(x[j] + branch[j]));  // as backward will read it
        store(a.sum + begin + i, x);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) total += p.layer ? x[j] : x[j] * x[j];
    });
    total = block_sum(total, partial);
    const float mean = p.layer ? total / float(p.width) : 0.f;
    float squares = total;
    if (p.layer) {
      squares = 0;
      row_again([&](const float(&x)[N], int) {
#pragma unroll
        for (int j = 0; j < N; ++j) squares += (x[j] - mean) * (x[j] - mean);
      });
      squares = block_sum(squares, partial);
    }
    const float under_root = squares / float(p.width) + p.eps;
    const float inverse = under_root > 0 ? 1.f / sqrtf(under_root) : 0.f;
    row_again([&](const float(&x)[N], int i) {
      float y[N], weight[N], bias[N] = {};
      load(weight, p.weight + i);
      if (p.bias) load(bias, p.bias + i);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = fmaf((x[j] - mean) * inverse, weight[j] + p.offset, bias[j]);
      store(a.y + begin + i, y);
    });
    if (device::thread_index().x == 0) {
      a.inverse[row] = inverse;
      if (p.layer) a.mean[row] = mean;
    }
  }
}

template <class X, class Y>
struct Backward {
  X* dx;
  float* partial;  // [blocks, width, or 2 width with a bias]: each block's d_weight, then its d_bias
  const Y* dy;
  const X* x;
  const float *inverse, *mean;
  bool accumulate;
};

// dx = inverse * (g - (S1 + xhat * S2) / d) with g = gain * dy, S1 = sum g (layer only), S2 = sum g * xhat.
// Shared memory: [kMostWarps] for sums. With Packs = 0 a block adds to its d_weight and d_bias where it leaves them.
template <class X, class Y, int N, int Packs>
__global__ void __launch_bounds__(kMostThreads, Packs > 1 ? 1 : 2) backward_rows(Backward<X, Y> a, Parameters p) {
  float* partial = device::shared_memory<float>();
  float* own = a.partial + int64_t(device::block_index().x) * p.width * (p.bias ? 2 : 1);
  Kept<N, Packs> xhat, g, d_weight = {}, d_bias = {};
  const auto leave_sums = [&] {
    for_row<N, Packs>(p.width, [&](int pack, int i) {
      store(own + i, d_weight[pack]);
      if (p.bias) store(own + p.width + i, d_bias[pack]);
    });
  };
  if (Packs == 0) leave_sums();
  for (int64_t row = device::block_index().x; row < p.rows; row += device::grid_size().x) {
    const int64_t begin = row * p.width;
    const float inverse = a.inverse[row], mean = p.layer ? a.mean[row] : 0.f;
    // xhat and dy of a pack, then g in dy's place.
    const auto get = [&](int pack, int i) {
      load(xhat[pack], a.x + begin + i);
      load(g[pack], a.dy + begin + i);
#pragma unroll
      for (int j = 0; j < N; ++j) xhat[pack][j] = (xhat[pack][j] - mean) * inverse;
    };
    const auto multiply_by_gain = [&](int pack, int i) {
      float weight[N];
      load(weight, p.weight + i);
#pragma unroll
      for (int j = 0; j < N; ++j) g[pack][j] *= weight[j] + p.offset;
    };
    float first = 0, second = 0;
    for_row<N, Packs>(p.width, [&](int pack, int i) {
      get(pack, i);
      if (Packs == 0) load(d_weight[0], own + i);
      if (Packs == 0 && p.bias) load(d_bias[0], own + p.width + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        d_weight[pack][j] = fmaf(g[pack][j], xhat[pack][j], d_weight[pack][j]);
        if (p.bias) d_bias[pack][j] += g[pack][j];
      }
      if (Packs == 0) store(own + i, d_weight[0]);
      if (Packs == 0 && p.bias) store(own + p.width + i, d_bias[0]);
      multiply_by_gain(pack, i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        first += g[pack][j];
        second = fmaf(g[pack][j], xhat[pack][j], second);
      }
    });
    second = block_sum(second, partial) / float(p.width);
    first = p.layer ? block_sum(first, partial) / float(p.width) : 0.f;
    for_row<N, Packs>(p.width, [&](int pack, int i) {
      if (Packs == 0) get(pack, i), multiply_by_gain(pack, i);
      float before[N] = {}, dx[N];
      if (a.accumulate) load(before, a.dx + begin + i);
#pragma unroll
      for (int j = 0; j < N; ++j) dx[j] = fmaf(fmaf(-xhat[pack][j], second, g[pack][j] - first), inverse, before[j]);
      store(a.dx + begin + i, dx);
    });
  }
  if (Packs > 0) leave_sums();
}

// About eight features a thread, whole warps; as many blocks as fill the device, a row each at least.
struct Grid {
  unsigned blocks, threads;
  int64_t packs;  // of a thread, of eight features
};
Grid grid_for(const ConstTensor& x) {
  const int64_t warps = (x.size(1) + kWide * device::kWarp - 1) / (kWide * device::kWarp);
  const int64_t threads = std::clamp<int64_t>(warps * device::kWarp, device::kWarp, kMostThreads);
  const int64_t most = int64_t(keel::cuda::multiprocessors(x.device())) * std::min<int64_t>(2048 / threads, 32);
  return {unsigned(std::min(most, x.size(0))), unsigned(threads),
          (x.size(1) + kWide * threads - 1) / (kWide * threads)};
}

constexpr size_t kSharedBytes = kMostWarps * sizeof(float);

// f.operator()<X, Y, N, Packs>() for the types of the residual stream and of the activations.
template <class F>
void dispatch(DType stream, DType activation, int width, int64_t packs, const F& f) {
  dispatch_device_float(stream, [&]<class X>() {
    dispatch_device_float(activation, [&]<class Y>() {
      if (width == 1 || packs > 2) return dispatch_width(width, [&]<int N>() { f.template operator()<X, Y, N, 0>(); });
      packs == 1 ? f.template operator()<X, Y, kWide, 1>() : f.template operator()<X, Y, kWide, 2>();
    });
  });
}

// Of all tensors [n, D] and [D] of a call.
template <class... Tensors>
int norm_width(const ConstTensor& x, const NormWeights& weights, const Tensors&... others) {
  return x.size(1) % kWide == 0 ? width_of(x, weights.weight, weights.bias, others...) : 1;
}

}  // namespace

void norm_forward(const NormForward& call) {
  const ConstTensor& x = call.x;
  const Parameters p = parameters_of(call.weights, call.options, x);
  const Grid grid = grid_for(x);
  const int width = norm_width(x, call.weights, call.y, call.sum, call.branch);
  dispatch(x.dtype(), call.y.dtype(), width, grid.packs, [&]<class X, class Y, int N, int Packs>() {
    const Forward<X, Y> arguments{
        at<Y>(call.y), at<X>(call.sum),   at<float>(call.statistics.inverse), at<float>(call.statistics.mean),
        at<X>(x),      at<Y>(call.branch)};
    launch(forward_rows<X, Y, N, Packs>, grid.blocks, grid.threads, kSharedBytes,
           keel::cuda::current_stream(x.device()), arguments, p);
  });
}

void norm_backward(const NormBackward& call) {
  const ConstTensor& x = call.x;
  const Parameters p = parameters_of(call.weights, call.options, x);
  const Grid grid = grid_for(x);
  const int64_t columns = int64_t(p.width) * (p.bias ? 2 : 1);
  const int width = norm_width(x, call.weights, call.dx, call.dy);
  const cudaStream_t stream = keel::cuda::current_stream(x.device());
  void* memory = keel::cuda::workspace(x.device(), int64_t(grid.blocks) * columns * int64_t(sizeof(float)));
  auto* partial = static_cast<float*>(memory);
  dispatch(x.dtype(), call.dy.dtype(), width, grid.packs, [&]<class X, class Y, int N, int Packs>() {
    const Backward<X, Y> arguments{at<X>(call.dx),
                                   partial,
                                   at<Y>(call.dy),
                                   at<X>(x),
                                   at<float>(call.statistics.inverse),
                                   at<float>(call.statistics.mean),
                                   call.accumulate};
    launch(backward_rows<X, Y, N, Packs>, grid.blocks, grid.threads, kSharedBytes, stream, arguments, p);
  });
  const PartialColumns of_weight{at<float>(call.gradients.d_weight), partial, p.width};
  const PartialColumns of_bias{at<float>(call.gradients.d_bias), partial + p.width, p.width};
  add_partial_columns(of_weight, p.bias ? of_bias : PartialColumns{}, grid.blocks, columns, x.device());
}

}  // namespace keel::ops::cuda
