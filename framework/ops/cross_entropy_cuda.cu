#include <cmath>

#include "framework/ops/cross_entropy_cuda.h"
#include "framework/ops/support/kernel.h"

// A block takes a row of logits. Bytes from and to memory, for each logit: statistics read 4 (and write 4 where there
// is a soft-cap), the gradient reads 4 and writes 2 or 4. Blocks are wide: two of 1024 threads fill a multiprocessor,
// with 32 registers for each.
namespace keel::ops::cuda {
namespace {

constexpr int kRowThreads = 1024;

struct Logits {
  float* data;
  int64_t stride;   // between rows
  int64_t columns;  // of this rank
  int64_t real;     // the first of them that are no padding
  int64_t first;    // the id of the first
};

struct Statistics {
  float *maximum, *sum_exp, *target_logit, *logit_sum;  // [n] each
};

// Where the target's column lies among this rank's real ones, or -1.
__device__ __forceinline__ int64_t target_column(int32_t target, const Logits& logits) {
  const int64_t column = target - logits.first;
  return target >= 0 && column >= 0 && column < logits.real ? column : -1;
}

__device__ __forceinline__ float* own_row(const Logits& logits) {
  return logits.data + int64_t(device::block_index().x) * logits.stride;
}

// f(column, Width<W>) for the columns [begin, end) of a row, by all threads of the block. begin is a multiple of N.
template <int N, class F>
__device__ __forceinline__ void for_columns(int64_t begin, int64_t end, const F& f) {
  const int64_t thread = device::thread_index().x, threads = device::block_size().x;
  const int64_t wide_end = begin + (end - begin) / N * N;
  for (int64_t i = begin + thread * N; i < wide_end; i += threads * N) f(i, Width<N>());
  if constexpr (N > 1)
    for (int64_t i = wide_end + thread; i < end; i += threads) f(i, Width<1>());
}

// The largest of the block's values, in all threads; `shared` as for block_sum. NaN counts as nothing.
__device__ __forceinline__ float block_max(float value, float* shared) {
#pragma unroll
  for (unsigned bits = device::kWarp / 2; bits > 0; bits /= 2) value = fmaxf(value, device::shuffle_xor(value, bits));
  device::sync_threads();
  if (device::lane() == 0) shared[device::thread_index().x / device::kWarp] = value;
  device::sync_threads();
  for (unsigned i = 0; i < device::block_size().x / device::kWarp; ++i) value = fmaxf(value, shared[i]);
  return value;
}

// What a thread has seen of its row.
struct Seen {
  float maximum = -INFINITY;
  float sum_exp = 0;  // of exp(logit - shift())
  float logit_sum = 0;

  // Nothing but -infinity so far: e^-infinity is 0 at any shift, -infinity itself would give NaN.
  __device__ __forceinline__ static float shift(float maximum) { return maximum == -INFINITY ? 0 : maximum; }

  template <int W>
  __device__ __forceinline__ void add(const float (&logits)[W]) {
    float largest = maximum;
#pragma unroll
    for (int i = 0; i < W; ++i) largest = fmaxf(largest, logits[i]);
    if (largest != maximum && sum_exp > 0) sum_exp *= expf(maximum - shift(largest));
    maximum = largest;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum_exp += expf(logits[i] - shift(maximum));
      logit_sum += logits[i];
    }
  }
};

template <int N>
__global__ void __launch_bounds__(kRowThreads, 2)
    row_statistics(Statistics out, Logits logits, const int32_t* targets, float cap) {
  float* row = own_row(logits);
  Seen seen;
  for_columns<N>(0, logits.real, [&]<int W>(int64_t i, Width<W>) {
    float values[W];
    load(values, row + i);
    if (cap > 0) {
#pragma unroll
      for (int j = 0; j < W; ++j) values[j] = cap * tanhf(values[j] / cap);
      store(row + i, values);
    }
    seen.add(values);
  });
  double* shared = device::shared_memory<double>();
  const float maximum = block_max(seen.maximum, device::shared_memory<float>());
  double sum_exp = double(seen.sum_exp);
  if (sum_exp > 0) sum_exp *= double(expf(Seen::shift(seen.maximum) - Seen::shift(maximum)));
  sum_exp = block_sum(sum_exp, shared);
  const double logit_sum = block_sum(double(seen.logit_sum), shared);
  if (device::thread_index().x != 0) return;
  const int64_t number = device::block_index().x, target = target_column(targets[number], logits);
  out.maximum[number] = maximum;
  out.sum_exp[number] = float(sum_exp);
  out.logit_sum[number] = float(logit_sum);
  out.target_logit[number] = target < 0 ? 0.f : row[target];
}

__global__ void __launch_bounds__(kThreads)
    rescale_rows(float* maximum, float* sum_exp, const float* global, int64_t n) {
  for_elements<1>(n, [&](int64_t row, auto) {
    // Equal infinities differ by NaN.
    if (maximum[row] != global[row]) sum_exp[row] *= expf(maximum[row] - global[row]);
    maximum[row] = global[row];
  });
}

// One block; sums [4] += loss, z-loss, counted, finite.
__global__ void __launch_bounds__(kThreads)
    add_losses(double* sums, Statistics of, const int32_t* targets, int64_t n, CrossEntropyOptions options) {
  const double smoothing = double(options.label_smoothing);
  double own[4] = {0, 0, 0, 0};
  for (int64_t row = device::thread_index().x; row < n; row += kThreads) {
    if (targets[row] < 0) continue;
    const double log_sum_exp = double(of.maximum[row]) + log(double(of.sum_exp[row]));
    double loss = log_sum_exp - (1 - smoothing) * double(of.target_logit[row]);
    if (smoothing > 0) loss -= smoothing * double(of.logit_sum[row]) / double(options.vocabulary);
    own[0] += loss;
    own[1] += double(options.z_loss) * log_sum_exp * log_sum_exp;
    own[2] += 1;
    own[3] += std::isfinite(loss) ? 1 : 0;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const double total = block_sum(own[i], device::shared_memory<double>());
    if (device::thread_index().x == 0) sums[i] += total;
  }
}

// d = (by_softmax * exp(logit - maximum) - even) * (1 - (logit / cap)^2); the target's own share comes on top.
struct RowGradient {
  float maximum, by_softmax, even, inverse_cap;  // inverse_cap is 0 without a soft-cap
  float at_target;
};

struct Gradient {
  Logits logits;
  Statistics statistics;
  const int32_t* targets;
  const float* factor;
  CrossEntropyOptions options;
};

__device__ __forceinline__ RowGradient row_gradient(int64_t row, const Gradient& call) {
  const Statistics& of = call.statistics;
  const CrossEntropyOptions& options = call.options;
  const int64_t target = target_column(call.targets[row], call.logits);
  const double scale = double(*call.factor);
  const double smoothing = double(options.label_smoothing), maximum = double(of.maximum[row]);
  const double sum = double(of.sum_exp[row]), log_sum_exp = maximum + log(sum);
  const double by_softmax = scale * (1 + 2 * double(options.z_loss) * log_sum_exp) / sum;
  const double even = scale * smoothing / double(options.vocabulary);
  const double inverse_cap = options.softcap > 0 ? 1 / double(options.softcap) : 0;
  double at_target = 0;
  if (target >= 0) {
    const double logit = double(call.logits.data[row * call.logits.stride + target]), slope = logit * inverse_cap;
    at_target = (by_softmax * exp(logit - maximum) - even - scale * (1 - smoothing)) * (1 - slope * slope);
  }
  return {float(maximum), float(by_softmax), float(even), float(inverse_cap), float(at_target)};
}

// A thread each, before any row is overwritten: a block that began with this would wait for one of its threads.
__global__ void __launch_bounds__(kThreads) row_gradients(RowGradient* out, Gradient call, int64_t rows) {
  for_elements<1>(rows, [&](int64_t row, auto) {
    if (call.targets[row] >= 0) out[row] = row_gradient(row, call);
  });
}

// d_logits may be the logits: a thread writes the columns that it has read.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads, 2)
    gradient_rows(T* d_logits, int64_t d_stride, Gradient call, const RowGradient* rows) {
  const Logits& logits = call.logits;
  const float* row = own_row(logits);
  T* d_row = d_logits + int64_t(device::block_index().x) * d_stride;
  const int32_t id = call.targets[device::block_index().x];
  const int64_t target = target_column(id, logits), written = id < 0 ? 0 : logits.real;
  if (id >= 0) {
    const RowGradient gradient = rows[device::block_index().x];
    for_columns<N>(0, written, [&]<int W>(int64_t i, Width<W>) {
      float values[W];
      load(values, row + i);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float inner = fmaf(expf(values[j] - gradient.maximum), gradient.by_softmax, -gradient.even);
        const float slope = values[j] * gradient.inverse_cap;
        // Without a soft-cap a logit of -infinity must not meet 0 * infinity.
        const float square = gradient.inverse_cap != 0 ? slope * slope : 0;
        values[j] = i + j == target ? gradient.at_target : fmaf(-square, inner, inner);
      }
      store(d_row + i, values);
    });
  }
  for_columns<1>(written, logits.columns, [&](int64_t i, auto) { d_row[i] = from_float<T>(0); });
}

// --- the host's side ----------------------------------------------------------------------------------------------

Logits logits_of(const ConstTensor& logits, const CrossEntropyOptions& options) {
  const int64_t real = std::clamp<int64_t>(options.vocabulary - options.first_column, 0, logits.size(1));
  return {const_cast<float*>(at<float>(logits)), logits.stride(0), logits.size(1), real, options.first_column};
}

Statistics statistics_of(const CrossEntropyStatistics& s) {
  return {at<float>(s.maximum), at<float>(s.sum_exp), at<float>(s.target_logit), at<float>(s.logit_sum)};
}

// What is left of a row after its wide elements is taken one by one, so only the rows' starts matter.
template <class... Tensors>
int logits_width(const Tensors&... rows) {
  return ((rows.stride(0) % kWide == 0) && ...) ? width_of(rows...) : 1;
}

// Whole warps, with about two turns of work for each thread.
unsigned threads_for(const ConstTensor& logits, int width) {
  const int64_t warps = (logits.size(1) / width / 2 + device::kWarp - 1) / device::kWarp;
  return unsigned(std::clamp<int64_t>(warps, 1, kRowThreads / device::kWarp)) * device::kWarp;
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& statistics, Tensor logits, ConstTensor targets,
                              const CrossEntropyOptions& options) {
  const int width = logits_width(logits);
  const unsigned threads = threads_for(logits, width);
  dispatch_width(width, [&]<int N>() {
    launch(row_statistics<N>, unsigned(logits.size(0)), threads, threads / device::kWarp * sizeof(double),
           keel::cuda::current_stream(logits.device()), statistics_of(statistics), logits_of(logits, options),
           at<int32_t>(targets), options.softcap);
  });
}

void cross_entropy_rescale(const CrossEntropyStatistics& statistics, ConstTensor global_maximum) {
  const Device device = global_maximum.device();
  const int64_t n = global_maximum.elements();
  launch(rescale_rows, blocks_for(device, n), kThreads, 0, keel::cuda::current_stream(device),
         at<float>(statistics.maximum), at<float>(statistics.sum_exp), at<float>(global_maximum), n);
}

void cross_entropy_loss(Tensor sums, const CrossEntropyStatistics& statistics, ConstTensor targets,
                        const CrossEntropyOptions& options) {
  launch(add_losses, 1, kThreads, kThreads / device::kWarp * sizeof(double),
         keel::cuda::current_stream(targets.device()), at<double>(sums), statistics_of(statistics),
         at<int32_t>(targets), targets.elements(), options);
}

void cross_entropy_gradient(Tensor d_logits, const CrossEntropyGradient& call) {
  const auto& [logits, statistics, targets, factor, options] = call;
  const Gradient arguments{logits_of(logits, options), statistics_of(statistics), at<int32_t>(targets),
                           at<float>(factor), options};
  const Device device = d_logits.device();
  const cudaStream_t stream = keel::cuda::current_stream(device);
  const int64_t n = d_logits.size(0);
  if (n == 0) return;
  auto* rows = reinterpret_cast<RowGradient*>(keel::cuda::workspace(device, n * int64_t(sizeof(RowGradient))));
  launch(row_gradients, blocks_for(device, n), kThreads, 0, stream, rows, arguments, n);
  const int width = logits_width(d_logits, logits);
  dispatch_device_float(d_logits.dtype(), [&]<class T>() {
    dispatch_width(width, [&]<int N>() {
      launch(gradient_rows<T, N>, unsigned(n), threads_for(d_logits, width), 0, stream, at<T>(d_logits),
             d_logits.stride(0), arguments, rows);
    });
  });
}

}  // namespace keel::ops::cuda
