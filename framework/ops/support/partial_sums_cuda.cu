#include "framework/ops/support/kernel.h"
#include "framework/ops/support/partial_sums_cuda.h"

namespace keel::ops::cuda {
namespace {

// One block: each thread adds every 256th partial sum, then the block its threads'.
__global__ void __launch_bounds__(kThreads) add_up(double* total, const double* partial, int64_t count) {
  double own = 0;
  for (int64_t i = device::thread_index().x; i < count; i += kThreads) own += partial[i];
  own = block_sum(own, device::shared_memory<double>());
  if (device::thread_index().x == 0) *total += own;
}

// A block adds 32 neighbouring columns, its warps taking turns at their rows.
constexpr int kMostColumnThreads = 1024;
__global__ void __launch_bounds__(kMostColumnThreads)
    add_up_columns(PartialColumns first, PartialColumns second, int64_t blocks, int64_t block_stride) {
  const PartialColumns of = device::block_index().y == 0 ? first : second;
  const int lane = int(device::lane()), warp = int(device::thread_index().x) / device::kWarp;
  const int warps = int(device::block_size().x) / device::kWarp;
  const int column = int(device::block_index().x) * device::kWarp + lane;
  double own = 0;
  if (column < of.columns) {
    // The place of a row follows from the one before: divisions would keep the loads from running ahead.
    const int step = warps % of.rows;
    const int64_t ahead = warps / of.rows * block_stride + int64_t(step) * of.row_stride;
    const int64_t to_next_block = block_stride - int64_t(of.rows) * of.row_stride;
    int row = warp % of.rows;
    int64_t at = warp / of.rows * block_stride + int64_t(row) * of.row_stride + column;
#pragma unroll 8
    for (int64_t i = warp; i < blocks * of.rows; i += warps) {
      own += double(of.partial[at]);
      row += step;
      at += ahead;
      if (row < of.rows) continue;
      row -= of.rows;
      at += to_next_block;
    }
  }
  double* shared = device::shared_memory<double>();
  shared[warp * device::kWarp + lane] = own;
  device::sync_threads();
  if (warp != 0 || column >= of.columns) return;
  double total = 0;
  for (int i = 0; i < warps; ++i) total += shared[i * device::kWarp + lane];
  of.sums[column] += float(total);
}

}  // namespace

double* partial_sums(Device device, int64_t blocks) {
  return reinterpret_cast<double*>(keel::cuda::workspace(device, blocks * int64_t(sizeof(double))));
}

void add_partial_sums(Tensor total, const double* partial, int64_t blocks) {
  launch(add_up, 1, kThreads, kThreads / device::kWarp * sizeof(double), keel::cuda::current_stream(total.device()),
         at<double>(total), partial, blocks);
}

void add_partial_columns(const PartialColumns& first, const PartialColumns& second, int64_t blocks,
                         int64_t block_stride, Device where) {
  const unsigned grid = unsigned((std::max(first.columns, second.columns) + device::kWarp - 1) / device::kWarp);
  const int64_t rows = blocks * std::max(first.rows, second.rows);
  const auto threads = unsigned(std::clamp<int64_t>(rows, 1, kMostColumnThreads / device::kWarp)) * device::kWarp;
  launch(add_up_columns, dim3(grid, second.columns > 0 ? 2 : 1), threads, threads * sizeof(double),
         keel::cuda::current_stream(where), first, second, blocks, block_stride);
}

}  // namespace keel::ops::cuda
