#include "framework/ops/sample_sums_cuda.h"
#include "framework/ops/support/kernel.h"

// Of one layer on telemetry steps: the whole stream, 16 queries of each head.
namespace keel::ops::cuda {
namespace {

struct Moments {
  double outliers, squares, fourth_powers;
};

__device__ __forceinline__ Moments block_sum_of(Moments own) {
  auto* partial = device::shared_memory<double>();
  return {block_sum(own.outliers, partial), block_sum(own.squares, partial), block_sum(own.fourth_powers, partial)};
}

// partial [blocks]: of each block's elements.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) moments_of(Moments* partial, const T* x, float outlier, int64_t n) {
  Moments own{0, 0, 0};
  for_elements<N>(n, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const double square = double(values[j]) * double(values[j]);
      own.outliers += fabsf(values[j]) > outlier ? 1 : 0;
      own.squares += square;
      own.fourth_powers += square * square;
    }
  });
  own = block_sum_of(own);
  if (device::thread_index().x == 0) partial[device::block_index().x] = own;
}

__global__ void __launch_bounds__(kThreads)
    add_up(float* sums, const Moments* partial, unsigned blocks, float elements) {
  Moments own{0, 0, 0};
  for (unsigned i = device::thread_index().x; i < blocks; i += kThreads) {
    own.outliers += partial[i].outliers;
    own.squares += partial[i].squares;
    own.fourth_powers += partial[i].fourth_powers;
  }
  own = block_sum_of(own);
  if (device::thread_index().x != 0) return;
  sums[0] += elements;
  sums[1] += float(own.outliers);
  sums[2] += float(own.squares);
  sums[3] += float(own.fourth_powers * (kOfFourthPowers * kOfFourthPowers * kOfFourthPowers * kOfFourthPowers));
}

struct Sample {
  int64_t rows, H, G, d, queries, most_keys, window;
  const int* first_key;  // or null
  float least;
};

// By the lanes of a warp.
template <class T>
__device__ __forceinline__ float dot(const T* a, const T* b, int64_t d) {
  float sum = 0;
  for (int64_t i = device::lane(); i < d; i += device::kWarp) sum = fmaf(to_float(a[i]), to_float(b[i]), sum);
  return warp_sum(sum);
}

// A block per query head; each of its warps takes every eighth key.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_parallel(float* parallel, float* pairs, const T* q, const T* k, Sample s) {
  const int64_t h = device::block_index().x, g = h / (s.H / s.G);
  int count = 0;
  int64_t looked_at = 0;
  for (int64_t i = 1; i <= s.queries; ++i) {
    const int64_t t = i * s.rows / s.queries - 1;
    const T* query = q + (t * s.H + h) * s.d;
    const float limit = s.least * sqrtf(dot(query, query, s.d));
    int64_t begin = s.first_key ? s.first_key[t] : 0;
    if (s.window > 0 && begin < t - s.window + 1) begin = t - s.window + 1;
    const int64_t visible = t + 1 - begin;
    const int64_t stride = visible > s.most_keys ? (visible + s.most_keys - 1) / s.most_keys : 1;
    const int64_t last = t - (i - 1) * stride / s.queries, seen = last < begin ? 0 : (last - begin) / stride + 1;
    looked_at += seen;
    for (int64_t n = device::thread_index().x / device::kWarp; n < seen; n += kThreads / device::kWarp) {
      const T* key = k + ((last - n * stride) * s.G + g) * s.d;
      const float product = dot(query, key, s.d), squares = dot(key, key, s.d);
      if (device::lane() == 0 && fabsf(product) > limit * sqrtf(squares)) ++count;
    }
  }
  count = block_sum(count, device::shared_memory<int>());
  if (device::thread_index().x != 0) return;
  parallel[h] += float(count);
  if (h == 0) pairs[0] += float(looked_at);
}

constexpr size_t kSharedBytes = kThreads / device::kWarp * sizeof(double);

}  // namespace

void add_moments(Tensor sums, ConstTensor x, float outlier) {
  const Device device = x.device();
  const int width = width_of(x);
  const unsigned blocks = blocks_for(device, (x.elements() + width - 1) / width);  // 1 where x is less than wide
  const cudaStream_t stream = keel::cuda::current_stream(device);
  auto* partial = reinterpret_cast<Moments*>(keel::cuda::workspace(device, blocks * int64_t(sizeof(Moments))));
  dispatch_device_float(x.dtype(), [&]<class T>() {
    dispatch_width(width, [&]<int N>() {
      launch(moments_of<N, T>, blocks, kThreads, kSharedBytes, stream, partial, at<T>(x), outlier, x.elements());
    });
  });
  launch(add_up, 1, kThreads, kSharedBytes, stream, at<float>(sums), partial, blocks, float(x.elements()));
}

void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& x) {
  const ConstTensor &q = x.q, &k = x.k;
  const Sample sample{
      q.size(0), q.size(1), k.size(1), q.size(2), x.queries, x.most_keys, x.window, at<int>(x.first_key), x.least};
  dispatch_device_float(q.dtype(), [&]<class T>() {
    launch(count_parallel<T>, unsigned(sample.H), kThreads, kSharedBytes, keel::cuda::current_stream(q.device()),
           at<float>(parallel), at<float>(pairs), at<T>(q), at<T>(k), sample);
  });
}

}  // namespace keel::ops::cuda
