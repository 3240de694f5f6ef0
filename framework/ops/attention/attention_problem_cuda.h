// What attention's kernels know of the problem: sizes, mask, and the keys that a row sees. Only attention's .cu files
// include it.
#pragma once

#include <climits>
#include <typeinfo>

#include "framework/ops/attention/attention.h"
#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/attention/attention_tile_cuda.h"
#include "framework/tensor/gpu.h"

namespace keel::ops::cuda {

struct AttentionProblem {
  int batch, queries, keys, heads, kv_heads, head_dim;
  bool causal, wide;  // wide: all rows start and end at multiples of 16 bytes
  int q_offset, window;
  float softcap;
  const float* scale;
  const int* first_key;  // or null
  int64_t first_key_stride;

  __device__ int kv_head(int h) const { return h / (heads / kv_heads); }

  // Where a block of the grid works: the first blocks of all heads come before the second of any, so that those with
  // most work start first.
  struct Place {
    int b, head, block;
  };
  __device__ Place place(int number, int heads_of_grid) const {
    const int of_a_block = batch * heads_of_grid;
    return {number % of_a_block / heads_of_grid, number % heads_of_grid, number / of_a_block};
  }
};

// Whether rows of a tensor [B, T, heads, d] start and end at multiples of 16 bytes.
template <class TensorType>
bool is_wide(const TensorType& tensor) {
  const int64_t part = 16 / bytes_of(tensor.dtype());
  return tensor.size(3) % part == 0 && tensor.stride(0) % part == 0 && tensor.stride(1) % part == 0 &&
         tensor.stride(2) % part == 0 && reinterpret_cast<uintptr_t>(tensor.data()) % 16 == 0;
}

inline AttentionProblem problem_of(const AttentionInputs& inputs, const AttentionOptions& options) {
  const int64_t head_dim = inputs.q.size(3), most = INT_MAX / 4;
  require(head_dim <= 256, "attention: heads of size {}; CUDA has kernels up to 256", head_dim);
  require(std::max({inputs.q.size(1), inputs.k.size(1), std::abs(options.q_offset)}) <= most,
          "attention: {} queries, {} keys, offset {}; CUDA has kernels up to {}", inputs.q.size(1), inputs.k.size(1),
          options.q_offset, most);
  AttentionProblem problem{};
  problem.batch = int(inputs.q.size(0));
  problem.queries = int(inputs.q.size(1));
  problem.keys = int(inputs.k.size(1));
  problem.heads = int(inputs.q.size(2));
  problem.kv_heads = int(inputs.k.size(2));
  problem.head_dim = int(head_dim);
  problem.causal = options.causal;
  problem.wide = is_wide(inputs.q) && is_wide(inputs.k) && is_wide(inputs.v);
  problem.q_offset = int(options.q_offset);
  problem.window = int(std::min(options.window, most));
  problem.softcap = options.softcap;
  problem.scale = at<float>(inputs.scale);
  if (inputs.first_key.defined()) {
    problem.first_key = at<int>(inputs.first_key);
    problem.first_key_stride = inputs.first_key.stride(0);
  }
  return problem;
}

__device__ __forceinline__ int least(int a, int b) {
  return a < b ? a : b;
}
__device__ __forceinline__ int greatest(int a, int b) {
  return a > b ? a : b;
}

// Keys [begin, end). An empty one is [INT_MAX, 0), so that minimum and maximum join intervals.
struct KeyInterval {
  int begin = INT_MAX, end = 0;

  __device__ bool empty() const { return begin >= end; }
  __device__ bool holds(int key) const { return key >= begin && key < end; }
  __device__ bool meets(int first, int count) const { return begin < first + count && end > first; }
};

__device__ __forceinline__ KeyInterval visible(const AttentionProblem& problem, int b, int t) {
  if (t >= problem.queries) return {};
  const int position = problem.q_offset + t;
  KeyInterval keys{0, problem.keys};
  if (problem.first_key) keys.begin = greatest(problem.first_key[b * problem.first_key_stride + t], 0);
  if (problem.causal) keys.end = least(position + 1, problem.keys);
  if (problem.window > 0) keys.begin = greatest(keys.begin, position - problem.window + 1);
  return keys.empty() ? KeyInterval{} : keys;
}

// What a warp's 16 M rows from `first_row` on see: some of `any`, all of `all`.
struct WarpView {
  KeyInterval any, all{0, INT_MAX};

  __device__ WarpView(const AttentionProblem& problem, int b, int first_row, int M) {
    for (int row = int(device::lane()) / 4; row < kWarpRows * M; row += 8) {
      const KeyInterval own = visible(problem, b, first_row + row);
      any = {least(any.begin, own.begin), greatest(any.end, own.end)};
      all = {greatest(all.begin, own.begin), least(all.end, own.end)};
    }
#pragma unroll
    for (unsigned bits = 4; bits < 32; bits *= 2) {
      any.begin = least(any.begin, device::shuffle_xor(any.begin, bits));
      any.end = greatest(any.end, device::shuffle_xor(any.end, bits));
      all.begin = greatest(all.begin, device::shuffle_xor(all.begin, bits));
      all.end = least(all.end, device::shuffle_xor(all.end, bits));
    }
  }
};

// The rows 16 m + l / 4 + 8 i of a lane, i = 0 and 1.
struct LaneView {
  KeyInterval row[2];

  LaneView() = default;
  __device__ LaneView(const AttentionProblem& problem, int b, int first_row) {
    const int own = first_row + int(device::lane()) / 4;
    row[0] = visible(problem, b, own);
    row[1] = visible(problem, b, own + 8);
  }
};

// The keys that any row of the block sees. `shared`: two ints per warp, free again after the next barrier.
template <int kWarps>
__device__ KeyInterval joined_over_block(KeyInterval keys, int* shared) {
  const int warp = int(device::thread_index().x) / device::kWarp;
  device::sync_threads();
  if (device::lane() == 0) {
    shared[2 * warp] = keys.begin;
    shared[2 * warp + 1] = keys.end;
  }
  device::sync_threads();
  for (int i = 0; i < kWarps; ++i) keys = {least(keys.begin, shared[2 * i]), greatest(keys.end, shared[2 * i + 1])};
  return keys;
}

// Whether it holds for every thread of the block. `shared` as above.
template <int kWarps>
__device__ bool block_all(bool holds, int* shared) {
  holds = device::all(holds);
  const int warp = int(device::thread_index().x) / device::kWarp;
  device::sync_threads();
  if (device::lane() == 0) shared[warp] = holds;
  device::sync_threads();
  for (int i = 0; i < kWarps; ++i) holds = holds && shared[i];
  return holds;
}

constexpr float kLog2E = 1.44269504088896341f;

__device__ __forceinline__ float exponential(float x) {
  return device::fast_exp2(x * kLog2E);
}

// A product's 0 * NaN would carry a value that is not finite to rows that do not see it. Kernels therefore look at
// their results, and where one is not finite start again with such rows of the streamed tiles replaced by zeros and
// marked in `bad`; a visible pair with a marked row counts as NaN. All threads call, between barriers.
template <int D, class T>
__device__ void mark_bad_rows(T* first, T* second, int rows, int* bad) {
  for (int row = int(device::thread_index().x); row < rows; row += int(device::block_size().x)) {
    float poison = 0;
    T *a = first + row * kTileStride<T, D>, *b = second + row * kTileStride<T, D>;
    for (int j = 0; j < D; ++j) poison += to_float(a[j]) * 0 + to_float(b[j]) * 0;
    bad[row] = poison != 0;  // NaN
    for (int j = 0; j < D && bad[row]; ++j) a[j] = b[j] = from_float<T>(0);
  }
}

// NaN for every score with a marked column.
template <int M, int N>
__device__ __forceinline__ void poison_columns(float (&s)[M][N][4], const int* bad) {
  const int column = int(device::lane()) % 4 * 2;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (bad[8 * n + i % 2 + column]) s[m][n][i] = NAN;
}

// The second stage of sums per head: largest[h] = max(itself, largest of the blocks), sum[h] += their sum, always in
// one order. Either may be null on both sides.
struct BlockTotals {
  float *largest, *sum;            // [heads]
  const float* largest_of_blocks;  // [heads, blocks]
  const double* sum_of_blocks;     // the same
  int heads, blocks;
  int* raised_by = nullptr;  // [heads]: the first block whose largest raised largest[h], or -1; may be null
};
void join_blocks(const BlockTotals& totals, cudaStream_t stream);

// Whether a block of the device may have that much shared memory; and an input error where not.
inline bool has_room_for(Device device, size_t bytes) {
  return bytes <= keel::cuda::shared_bytes_per_block(device);
}
inline void require_room_for(Device device, size_t bytes, int head_dim) {
  if (has_room_for(device, bytes)) return;
  throw input_error(
      "attention with heads of {} needs {} KiB of shared memory per block, and {} has {}: choose smaller heads, "
      "another "
      "GPU or device: cpu",
      head_dim, (bytes + 1023) >> 10, keel::cuda::describe_gpu(device.index).name,
      keel::cuda::shared_bytes_per_block(device) >> 10);
}

// What CUDA keeps of a multiprocessor's shared memory for itself, for each block.
constexpr size_t kReservedBytes = 1024;
inline bool blocks_fit(Device device, int blocks, size_t bytes) {
  return has_room_for(device, bytes) &&
         size_t(blocks) * (bytes + kReservedBytes) <= keel::cuda::shared_bytes_per_multiprocessor(device);
}

template <class Memory, class... Parameters>
KernelUse use_of(const char* name, void (*kernel)(Parameters...), int blocks, size_t least_bytes) {
  // Behind the anonymous namespace, as long as the number before it says, without the end of the whole name.
  const std::string type = typeid(Memory).name();
  const size_t space = type.find("_GLOBAL__N_"), number = type.find_last_not_of("0123456789", space - 1) + 1;
  const size_t begin = space + std::stoul(type.substr(number));
  return {fmt::format("{} of heads of {}", name, Memory::D),
          type.substr(begin, type.size() - begin - 1),
          reinterpret_cast<const void*>(kernel),
          Memory::kThreads,
          blocks,
          Memory::kBytes,
          least_bytes};
}

// f<D>() with the smallest head size of the kernels that holds `head_dim`.
template <class F>
void dispatch_head_dim(int head_dim, F&& f) {
  if (head_dim <= 64) return f.template operator()<64>();
  if (head_dim <= 96) return f.template operator()<96>();
  if (head_dim <= 128) return f.template operator()<128>();
  f.template operator()<256>();
}

}  // namespace keel::ops::cuda
