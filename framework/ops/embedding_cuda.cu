#include "framework/ops/embedding_cuda.h"
#include "framework/ops/support/kernel.h"

namespace keel::ops::cuda {
namespace {

// table [rows, columns] and values [n, columns], strides in elements.
struct Lookup {
  int64_t n, columns, rows, first_id;
  int64_t table_stride, values_stride;
  float factor;
};

// The row of the table that position i names, or -1 for ids of other ranks.
__device__ __forceinline__ int64_t row_of(const int32_t* ids, int64_t i, const Lookup& at) {
  const int64_t row = ids[i] - at.first_id;
  return row >= 0 && row < at.rows ? row : -1;
}

template <class Y, class T, int N>
__global__ void __launch_bounds__(kThreads) look_up(Y* y, const T* table, const int32_t* ids, Lookup at) {
  const int64_t packs = at.columns / N;
  for_elements<1>(at.n * packs, [&](int64_t pack, auto) {
    const int64_t i = pack / packs, column = pack % packs * N, row = row_of(ids, i, at);
    float values[N] = {};
    if (row >= 0) load(values, table + row * at.table_stride + column);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = row < 0 ? 0.f : values[j] * at.factor;
    store(y + i * at.values_stride + column, values);
  });
}

constexpr int kTile = 2048;        // positions looked through at a time
constexpr int kListThreads = 128;  // of a block of the backward pass
constexpr int kListBlocks = 8;     // on a multiprocessor at a time
constexpr int kAhead = 4;          // positions whose values are on their way at a time
constexpr int kWarps = kListThreads / device::kWarp;
constexpr size_t kListBytes = (2 * kTile + kWarps) * sizeof(int);

// The positions of one tile whose rows belong to one bucket, in their order: [kTile] each, in shared memory.
struct List {
  int* position;
  int* row;
  int* counts;  // [warps]
};

// Fills the list from the ids [begin, end); returns its length. All threads call it.
__device__ __forceinline__ int collect(const List& list, const int32_t* ids, int64_t begin, int64_t end,
                                       const Lookup& at) {
  const unsigned buckets = device::grid_size().x, bucket = device::block_index().x;
  const unsigned thread = device::thread_index().x, warp = thread / device::kWarp;
  int length = 0;
  for (int64_t first = begin; first < end; first += kListThreads) {
    const int64_t i = first + thread;
    const int64_t row = i < end ? row_of(ids, i, at) : -1;
    const bool mine = row >= 0 && row % buckets == bucket;
    const unsigned votes = device::ballot(mine);
    device::sync_threads();  // the counts of the round before have been read, and so has the list of the tile before
    if (device::lane() == 0) list.counts[warp] = device::count_bits(votes);
    device::sync_threads();
    int place = length + device::count_bits(votes & ((1u << device::lane()) - 1));
    for (unsigned other = 0; other < kWarps; ++other) {
      if (other < warp) place += list.counts[other];
      length += list.counts[other];
    }
    if (mine) {
      list.position[place] = int(i - begin);
      list.row[place] = int(row);
    }
  }
  device::sync_threads();
  return length;
}

// Rows are dealt to buckets (grid x) and columns to chunks (grid y): every element of the table belongs to one thread,
// which adds its positions in their order. No atomics, no sort; a row that comes again and again stays in registers.
template <class T, int N>
__global__ void __launch_bounds__(kListThreads, kListBlocks)
    add_rows(float* d_table, const T* __restrict__ dy, const int32_t* ids, Lookup at) {
  int* shared = device::shared_memory<int>();
  const List list{shared, shared + kTile, shared + 2 * kTile};
  const int64_t column = (int64_t(device::block_index().y) * kListThreads + device::thread_index().x) * N;
  for (int64_t begin = 0; begin < at.n; begin += kTile) {
    const int length = collect(list, ids, begin, begin + kTile < at.n ? begin + kTile : at.n, at);
    if (column < at.columns) {
      float sums[N];
      int64_t current = -1;
      for (int first = 0; first < length; first += kAhead) {
        float values[kAhead][N];
#pragma unroll
        for (int e = 0; e < kAhead; ++e) {
          const int from = first + e < length ? first + e : length - 1;
          load(values[e], dy + (begin + list.position[from]) * at.values_stride + column);
        }
#pragma unroll
        for (int e = 0; e < kAhead; ++e) {
          if (first + e == length) break;
          const int64_t row = list.row[first + e];
          if (row != current) {
            if (current >= 0) store(d_table + current * at.table_stride + column, sums);
            load(sums, d_table + row * at.table_stride + column);
            current = row;
          }
#pragma unroll
          for (int j = 0; j < N; ++j) sums[j] = fmaf(values[e][j], at.factor, sums[j]);
        }
      }
      if (current >= 0) store(d_table + current * at.table_stride + column, sums);
    }
  }
}

Lookup lookup_of(const ConstTensor& values, const ConstTensor& table, int64_t first_id, float factor) {
  return {values.size(0), values.size(1), table.size(0), first_id, table.stride(0), values.stride(0), factor};
}

}  // namespace

void embedding_forward(Tensor y, ConstTensor table, ConstTensor ids, int64_t first_id, float factor) {
  const Lookup lookup = lookup_of(y, table, first_id, factor);
  dispatch_device_float(y.dtype(), [&]<class Y>() {
    dispatch_device_float(table.dtype(), [&]<class T>() {
      dispatch_width(row_width_of(y, table), [&]<int N>() {
        launch(look_up<Y, T, N>, blocks_for(y.device(), y.elements() / N), kThreads, 0,
               keel::cuda::current_stream(y.device()), at<Y>(y), at<T>(table), at<int32_t>(ids), lookup);
      });
    });
  });
}

void embedding_backward(Tensor d_table, ConstTensor dy, ConstTensor ids, int64_t first_id, float factor) {
  if (dy.elements() == 0 || d_table.elements() == 0) return;
  const Lookup lookup = lookup_of(dy, d_table, first_id, factor);
  dispatch_device_float(dy.dtype(), [&]<class T>() {
    dispatch_width(row_width_of(d_table, dy), [&]<int N>() {
      const int64_t chunks = (lookup.columns / N + kListThreads - 1) / kListThreads;
      const int64_t most = std::max<int64_t>(1, keel::cuda::multiprocessors(dy.device()) * kListBlocks / chunks);
      const dim3 grid(unsigned(std::min(most, lookup.rows)), unsigned(chunks));
      launch(add_rows<T, N>, grid, kListThreads, kListBytes, keel::cuda::current_stream(dy.device()),
             at<float>(d_table), at<T>(dy), at<int32_t>(ids), lookup);
    });
  });
}

}  // namespace keel::ops::cuda
