#include "framework/ops/matmul/matmul_cuda.h"
#include "framework/ops/support/kernel.h"
#include "framework/ops/support/partial_sums_cuda.h"

// Every element is read once: 2 bytes each in bf16, and 8 / 256 for the blocks' sums.
namespace keel::ops::cuda {
namespace {

constexpr int kRows = 256;  // of a block

// partial [blocks of rows, columns]. A warp takes every eighth row of 32 N neighbouring columns.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_columns(float* partial, const T* x, int64_t stride, int64_t rows, int64_t columns) {
  const unsigned lane = device::lane(), warp = device::thread_index().x / device::kWarp;
  const int64_t column = (int64_t(device::block_index().x) * device::kWarp + lane) * N;
  const int64_t first = int64_t(device::block_index().y) * kRows;
  const int64_t last = first + kRows < rows ? first + kRows : rows;
  float sums[N] = {};
  if (column < columns)
    for (int64_t row = first + warp; row < last; row += kThreads / device::kWarp) {
      float values[N];
      load(values, x + row * stride + column);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  float* shared = device::shared_memory<float>();  // [warps, 32 N]
#pragma unroll
  for (int i = 0; i < N; ++i) shared[(warp * N + unsigned(i)) * device::kWarp + lane] = sums[i];
  device::sync_threads();
  if (warp != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float total = 0;
    for (int other = 0; other < kThreads / device::kWarp; ++other)
      total += shared[unsigned(other * N + i) * device::kWarp + lane];
    partial[int64_t(device::block_index().y) * columns + column + i] = total;
  }
}

}  // namespace

void add_column_sums(Tensor sums, ConstTensor x) {
  const int64_t rows = x.size(0), columns = x.size(1), blocks = (rows + kRows - 1) / kRows;
  const cudaStream_t stream = keel::cuda::current_stream(x.device());
  float* partial =
      reinterpret_cast<float*>(keel::cuda::workspace(x.device(), blocks * columns * int64_t(sizeof(float))));
  dispatch_device_float(x.dtype(), [&]<class T>() {
    dispatch_width(row_width_of(x), [&]<int N>() {
      const dim3 grid(unsigned((columns + device::kWarp * N - 1) / (device::kWarp * N)), unsigned(blocks));
      launch(sum_columns<T, N>, grid, kThreads, kThreads * N * sizeof(float), stream, partial, at<T>(x), x.stride(0),
             rows, columns);
    });
  });
  add_partial_columns({at<float>(sums), partial, int(columns)}, {}, blocks, columns, x.device());
}

}  // namespace keel::ops::cuda
