#include "framework/ops/kernel.h"
#include "framework/ops/norm_cuda.h"
#include "framework/ops/partial_sums_cuda.h"

// A block per row: each row comes from memory once and stays in shared memory, as fp32, for the passes over it. A
// thread reads back only what it wrote itself, so the passes need no barriers but those of the sums.
namespace keel::ops::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / device::kWarp;
constexpr int64_t kMostWidth = 14000;  // of which backward can keep four rows

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
  require(x.size(1) <= kMostWidth, "norms on a GPU have at most {} features, not {}", kMostWidth, x.size(1));
  return {at<float>(weights.weight),
          at<float>(weights.bias),
          options.zero_centered ? 1.f : 0.f,
          options.eps,
          options.kind == NormKind::layer,
          x.size(0),
          int(x.size(1))};
}

// f(i) for this thread's packs of N features of a row.
template <int N, class F>
__device__ __forceinline__ void for_row(int width, const F& f) {
  for (int i = int(device::thread_index().x) * N; i < width; i += int(device::block_size().x) * N) f(i);
}

template <class X, class Y>
struct Forward {
  Y* y;
  X* sum;  // null without a branch
  float *inverse, *mean;
  const X* residual;
  const Y* branch;
};

// Shared memory: [kMostWarps] for sums, [width] the row.
template <class X, class Y, int N>
__global__ void __launch_bounds__(kMostThreads) forward_rows(Forward<X, Y> a, Parameters p) {
  float* partial = device::shared_memory<float>();
  float* kept = partial + kMostWarps;
  for (int64_t row = device::block_index().x; row < p.rows; row += device::grid_size().x) {
    const int64_t begin = row * p.width;
    float total = 0;
    for_row<N>(p.width, [&](int i) {
      float x[N];
      load(x, a.residual + begin + i);
      if (a.sum) {
        float branch[N];
        load(branch, a.branch + begin + i);
#pragma unroll
        for (int j = 0; j < N; ++j) x[j] = to_float(from_float<X>(x[j] + branch[j]));  // as backward will read it
        store(a.sum + begin + i, x);
      }
      store(kept + i, x);
#pragma unroll
      for (int j = 0; j < N; ++j) total += p.layer ? x[j] : x[j] * x[j];
    });
    total = block_sum(total, partial);
    const float mean = p.layer ? total / float(p.width) : 0.f;
    float squares = total;
    if (p.layer) {
      squares = 0;
      for_row<N>(p.width, [&](int i) {
        float x[N];
        load(x, kept + i);
#pragma unroll
        for (int j = 0; j < N; ++j) squares += (x[j] - mean) * (x[j] - mean);
      });
      squares = block_sum(squares, partial);
    }
    const float under_root = squares / float(p.width) + p.eps;
    const float inverse = under_root > 0 ? 1.f / sqrtf(under_root) : 0.f;
    for_row<N>(p.width, [&](int i) {
      float x[N], weight[N], bias[N] = {};
      load(x, kept + i);
      load(weight, p.weight + i);
      if (p.bias) load(bias, p.bias + i);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = fmaf((x[j] - mean) * inverse, weight[j] + p.offset, bias[j]);
      store(a.y + begin + i, x);
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
// Shared memory: [kMostWarps] for sums, then [width] each of xhat, g, this block's d_weight and, with a bias, d_bias.
template <class X, class Y, int N>
__global__ void __launch_bounds__(kMostThreads) backward_rows(Backward<X, Y> a, Parameters p) {
  float* partial = device::shared_memory<float>();
  float *kept_xhat = partial + kMostWarps, *kept_g = kept_xhat + p.width;
  float *d_weight = kept_g + p.width, *d_bias = d_weight + p.width;
  for_row<N>(p.width, [&](int i) {
    const float zero[N] = {};
    store(d_weight + i, zero);
    if (p.bias) store(d_bias + i, zero);
  });
  for (int64_t row = device::block_index().x; row < p.rows; row += device::grid_size().x) {
    const int64_t begin = row * p.width;
    const float inverse = a.inverse[row], mean = p.layer ? a.mean[row] : 0.f;
    float first = 0, second = 0;
    for_row<N>(p.width, [&](int i) {
      float xhat[N], dy[N], weight[N], sums[N];
      load(xhat, a.x + begin + i);
      load(dy, a.dy + begin + i);
      load(weight, p.weight + i);
      load(sums, d_weight + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        xhat[j] = (xhat[j] - mean) * inverse;
        sums[j] = fmaf(dy[j], xhat[j], sums[j]);
      }
      store(d_weight + i, sums);
      if (p.bias) {
        load(sums, d_bias + i);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += dy[j];
        store(d_bias + i, sums);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        dy[j] *= weight[j] + p.offset;
        first += dy[j];
        second = fmaf(dy[j], xhat[j], second);
      }
      store(kept_xhat + i, xhat);
      store(kept_g + i, dy);
    });
    second = block_sum(second, partial) / float(p.width);
    first = p.layer ? block_sum(first, partial) / float(p.width) : 0.f;
    for_row<N>(p.width, [&](int i) {
      float xhat[N], g[N], before[N] = {};
      load(xhat, kept_xhat + i);
      load(g, kept_g + i);
      if (a.accumulate) load(before, a.dx + begin + i);
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = fmaf(fmaf(-xhat[j], second, g[j] - first), inverse, before[j]);
      store(a.dx + begin + i, g);
    });
  }
  float* own = a.partial + int64_t(device::block_index().x) * p.width * (p.bias ? 2 : 1);
  for_row<N>(p.width, [&](int i) {
    float sums[N];
    load(sums, d_weight + i);
    store(own + i, sums);
    if (!p.bias) return;
    load(sums, d_bias + i);
    store(own + p.width + i, sums);
  });
}

// About eight features a thread, whole warps; as many blocks as fill the device, a row each at least.
struct Grid {
  unsigned blocks, threads;
};
Grid grid_for(const ConstTensor& x) {
  const int64_t warps = (x.size(1) + kWide * device::kWarp - 1) / (kWide * device::kWarp);
  const int64_t threads = std::clamp<int64_t>(warps * device::kWarp, device::kWarp, kMostThreads);
  const int64_t most = int64_t(keel::cuda::multiprocessors(x.device())) * std::min<int64_t>(2048 / threads, 32);
  return {unsigned(std::min(most, x.size(0))), unsigned(threads)};
}

size_t shared_bytes(int64_t rows, int64_t width) {
  return size_t(kMostWarps + rows * width) * sizeof(float);
}

// f.operator()<X, Y, N>() for the types of the residual stream and of the activations.
template <class F>
void dispatch(DType stream, DType activation, int width, const F& f) {
  dispatch_device_float(stream, [&]<class X>() {
    dispatch_device_float(
        activation, [&]<class Y>() { dispatch_width(width, [&]<int N>() { f.template operator()<X, Y, N>(); }); });
  });
}

// Of all tensors [n, D] and [D] of a call.
template <class... Tensors>
int norm_width(const ConstTensor& x, const NormWeights& weights, const Tensors&... others) {
  return x.size(1) % kWide == 0 ? width_of(x, weights.weight, weights.bias, others...) : 1;
}

}  // namespace

void norm_forward(const NormForward& call) {
  const ConstTensor& x = call.residual;
  const Parameters p = parameters_of(call.weights, call.options, x);
  const Grid grid = grid_for(x);
  const int width = norm_width(x, call.weights, call.y, call.sum, call.branch);
  dispatch(x.dtype(), call.y.dtype(), width, [&]<class X, class Y, int N>() {
    const Forward<X, Y> arguments{
        at<Y>(call.y), at<X>(call.sum),   at<float>(call.statistics.inverse), at<float>(call.statistics.mean),
        at<X>(x),      at<Y>(call.branch)};
    launch(forward_rows<X, Y, N>, grid.blocks, grid.threads, shared_bytes(1, p.width),
           keel::cuda::current_stream(x.device()), arguments, p);
  });
}

void norm_backward(const NormBackward& call, const NormGradients& gradients) {
  const ConstTensor& x = call.x;
  const Parameters p = parameters_of(call.weights, call.options, x);
  const Grid grid = grid_for(x);
  const int64_t columns = int64_t(p.width) * (p.bias ? 2 : 1);
  const int width = norm_width(x, call.weights, call.dx, call.dy);
  const cudaStream_t stream = keel::cuda::current_stream(x.device());
  void* memory = keel::cuda::workspace(x.device(), int64_t(grid.blocks) * columns * int64_t(sizeof(float)));
  auto* partial = static_cast<float*>(memory);
  dispatch(x.dtype(), call.dy.dtype(), width, [&]<class X, class Y, int N>() {
    const Backward<X, Y> arguments{at<X>(call.dx),
                                   partial,
                                   at<Y>(call.dy),
                                   at<X>(x),
                                   at<float>(call.statistics.inverse),
                                   at<float>(call.statistics.mean),
                                   call.accumulate};
    launch(backward_rows<X, Y, N>, grid.blocks, grid.threads, shared_bytes(p.bias ? 4 : 3, p.width), stream, arguments,
           p);
  });
  const PartialColumns of_weight{at<float>(gradients.d_weight), partial, p.width};
  const PartialColumns of_bias{at<float>(gradients.d_bias), partial + p.width, p.width};
  add_partial_columns(of_weight, p.bias ? of_bias : PartialColumns{}, grid.blocks, columns, x.device());
}

}  // namespace keel::ops::cuda
