// Tiles of attention on a GPU: rows of one head in shared memory, and the two products of FlashAttention-2 (Dao 2023)
// by one warp, which owns 16 M rows of the result. bf16 multiplies by tensor cores, fp32 by plain FMA with the sums in
// the same places. Only attention's .cu files include it.
//
// Sums [16 M, 8 N] of a warp lie as mma.sync leaves them: sums[m][n][2 i + j] of lane l is row 16 m + l / 4 + 8 i,
// column 8 n + 2 (l % 4) + j.
#pragma once

#include <device/math.h>
#include <device/matrix.h>

#include <bit>
#include <cstring>

#include "framework/ops/support/kernel.h"

namespace keel::ops::cuda {

constexpr int kWarpRows = 16;  // of an mma; a warp owns M times as many

// Rows in shared memory are 16 bytes longer than D elements: ldmatrix then meets every bank once, for each D in use.
template <class T, int D>
constexpr int kTileStride = D + 16 / int(sizeof(T));
template <class T, int D>
constexpr size_t tile_bytes(int rows) {
  return size_t(rows) * kTileStride<T, D> * sizeof(T);
}

// A tensor [B, T, heads, d] by its strides in elements.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t of_batch = 0, of_row = 0, of_head = 0;

  __device__ T* head(int b, int h) const { return data + b * of_batch + h * of_head; }
};
template <class T, class TensorType>
HeadRows<T> head_rows(const TensorType& tensor) {
  return {at<std::remove_const_t<T>>(tensor), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The rows of one head: [rows, columns].
template <class T>
struct RowSource {
  const T* data;
  int64_t stride;
  int rows, columns;
  bool wide;  // every row starts and ends at a multiple of 16 bytes
};

// Where a warp's rows go; `rows` may be negative where the warp has none.
template <class T>
struct RowSink {
  T* data;
  int64_t stride;
  int rows, columns;
  bool wide;
};

template <int n>
constexpr int kPowerFrom = int(std::bit_ceil(unsigned(n)));

// Starts to bring rows [first, first + kCount) to shared memory, zeros where there are none; all kThreads of the block
// call. Complete after wait_copies and a barrier. A power of two of neighbouring threads takes a row, so that a thread
// keeps its columns.
template <int D, int kCount, int kThreads, class T>
__device__ __forceinline__ void load_rows(T* to, const RowSource<T>& from, int first) {
  constexpr int kPart = 16 / sizeof(T), kParts = D / kPart, kLanes = kPowerFrom<kParts>;
  constexpr int kRows = kThreads / kLanes;
  static_assert(kThreads % kLanes == 0 && kCount % kRows == 0);
  const int column = int(device::thread_index().x) % kLanes * kPart;
  int row = int(device::thread_index().x) / kLanes;
  if (column >= D) return;
  to += row * kTileStride<T, D> + column;
  row += first;
  if (from.wide) {
    const T* source = from.data + row * from.stride + column;
    const int64_t step = kRows * from.stride;
    const int rows = column < from.columns ? from.rows : 0;
#pragma unroll
    for (int i = 0; i < kCount / kRows; ++i, row += kRows, source += step)
      device::copy_async(to + i * kRows * kTileStride<T, D>, source, row < rows ? 16 : 0);
  } else {
#pragma unroll 1
    for (int i = 0; i < kCount / kRows; ++i, row += kRows)
#pragma unroll 1
      for (int j = 0; j < kPart; ++j) {
        const bool inside = row < from.rows && column + j < from.columns;
        to[i * kRows * kTileStride<T, D> + j] = inside ? from.data[row * from.stride + column + j] : from_float<T>(0);
      }
  }
}

// The first rows of a warp's own in shared memory to a tensor. Wide and narrow rows have a loop each: in one, nvcc
// makes narrow stores of both. 128 bits are one number: of four, nvcc makes four stores where D is a power of two.
template <int D, class T>
__device__ void store_rows(const RowSink<T>& to, const T* own) {
  using Bits128 = unsigned __int128;
  constexpr int kPart = 16 / sizeof(T), kParts = D / kPart;
  device::sync_warp();
  if (to.wide) {
#pragma unroll 4
    for (int i = int(device::lane()); i < to.rows * kParts; i += device::kWarp) {
      const int row = i / kParts, column = i % kParts * kPart;
      if (column < to.columns)
        device::store_vector(to.data + row * to.stride + column,
                             device::load_vector<Bits128>(own + row * kTileStride<T, D> + column));
    }
  } else {
#pragma unroll 1
    for (int i = int(device::lane()); i < to.rows * D; i += device::kWarp) {
      const int row = i / D, column = i % D;
      if (column < to.columns) to.data[row * to.stride + column] = own[row * kTileStride<T, D> + column];
    }
  }
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float first, float second) {
  device::store_vector(to, packed(first, second));
}
__device__ __forceinline__ void put_pair(float* to, float first, float second) {
  device::store_vector(to, float2{first, second});
}

// sums[n][2 i + j] times factor[i] to 16 rows in shared memory.
template <int D, class T>
__device__ void put_rows(T* own, const float (&sums)[D / 8][4], const float (&factor)[2]) {
  const int lane = int(device::lane());
  T* at = own + lane / 4 * kTileStride<T, D> + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      put_pair(at + 8 * i * kTileStride<T, D> + 8 * n, sums[n][2 * i] * factor[i], sums[n][2 * i + 1] * factor[i]);
}

// A warp's own rows [16 M, D] in shared memory, as the first factor of products. bf16: their fragments stay in
// registers where `kKept`; else each product loads them again.
template <class T, int D, int M, bool kKept>
struct OwnRows {
  static_assert(M == 1 && !kKept, "fp32 has no fragments");
  const T* rows;

  __device__ explicit OwnRows(const T* of_warp) : rows(of_warp) {}
};
template <int D, int M, bool kKept>
struct OwnRows<__nv_bfloat16, D, M, kKept> {
  static constexpr int kStride = kTileStride<__nv_bfloat16, D>;
  const __nv_bfloat16* rows;
  uint32_t kept[kKept ? D / 16 : 1][M][4];

  // With `kKept` the rows are there already.
  __device__ explicit OwnRows(const __nv_bfloat16* of_warp)
      : rows(of_warp + int(device::lane()) % 16 * kStride + int(device::lane()) / 16 * 8) {
    if constexpr (kKept) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int m = 0; m < M; ++m) device::load_matrices(kept[k][m], rows + 16 * m * kStride + 16 * k);
    }
  }
  // Columns [16 k, 16 k + 16) of each 16 rows.
  __device__ __forceinline__ void get(uint32_t (&fragments)[M][4], int k) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      if constexpr (kKept) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fragments[m][i] = kept[k][m][i];
      } else {
        device::load_matrices(fragments[m], rows + 16 * m * kStride + 16 * k);
      }
    }
  }
};

// sums [16 M, 8 N] += a [16 M, D] b [8 N, D]^T, both in shared memory. Each fragment of b serves all M.
template <int D, int M, int N, bool kKept>
__device__ __forceinline__ void add_rows_product(float (&sums)[M][N][4], const OwnRows<__nv_bfloat16, D, M, kKept>& a,
                                                 const __nv_bfloat16* b) {
  constexpr int kStride = kTileStride<__nv_bfloat16, D>;
  const int row = int(device::lane()) % 8, low = int(device::lane()) / 8 % 2 * 8, high = int(device::lane()) / 16 * 8;
  b += (row + high) * kStride + low;
#pragma unroll(D > 128 ? 4 : D / 16)  // all at once would not fit the registers beside the sums of a long row
  for (int k = 0; k < D / 16; ++k) {
    uint32_t of_a[M][4];
    a.get(of_a, k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t of_b[4];
      device::load_matrices(of_b, b + 8 * n * kStride + 16 * k);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        device::multiply_add(sums[m][n], of_a[m], {of_b[0], of_b[1]});
        device::multiply_add(sums[m][n + 1], of_a[m], {of_b[2], of_b[3]});
      }
    }
  }
}

// out [16 M, D] += p [16 M, 8 N] b [8 N, D]; p in registers, rounded to bf16, b in shared memory.
template <int D, int M, int N>
__device__ __forceinline__ void add_columns_product(float (&out)[M][D / 8][4], const float (&p)[M][N][4],
                                                    const __nv_bfloat16* b) {
  constexpr int kStride = kTileStride<__nv_bfloat16, D>;
  const int row = int(device::lane()) % 16, high = int(device::lane()) / 16 * 8;
  b += row * kStride + high;
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    uint32_t of_p[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) of_p[m][i] = packed(p[m][k + i / 2][i % 2 * 2], p[m][k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t of_b[4];
      device::load_matrices_transposed(of_b, b + 8 * k * kStride + 8 * n);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        device::multiply_add(out[m][n], of_p[m], {of_b[0], of_b[1]});
        device::multiply_add(out[m][n + 1], of_p[m], {of_b[2], of_b[3]});
      }
    }
  }
}

// The same in fp32, 16 rows.
template <int D, int N>
__device__ __forceinline__ void add_rows_product(float (&of_rows)[1][N][4], const OwnRows<float, D, 1, false>& own,
                                                 const float* b) {
  constexpr int kStride = kTileStride<float, D>;
  const int lane = int(device::lane());
  auto& sums = of_rows[0];
  const float* a = own.rows + lane / 4 * kStride;
  b += lane % 4 * 2 * kStride;
#pragma unroll 2
  for (int k = 0; k < D; ++k) {
    const float of_a[2] = {a[k], a[8 * kStride + k]};
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = fmaf(of_a[i / 2], b[(8 * n + i % 2) * kStride + k], sums[n][i]);
  }
}
template <int D, int N>
__device__ __forceinline__ void add_columns_product(float (&of_rows)[1][D / 8][4], const float (&p_of_rows)[1][N][4],
                                                    const float* b) {
  constexpr int kStride = kTileStride<float, D>;
  const int lane = int(device::lane());
  auto& out = of_rows[0];
  const auto& p = p_of_rows[0];
  b += lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll 1
    for (int from = 0; from < 4; ++from) {
      float of_p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_p[i] = device::shuffle(p[n][i], unsigned(lane / 4 * 4 + from));
      const float* row = b + (8 * n + 2 * from) * kStride;
#pragma unroll
      for (int column = 0; column < D / 8; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* at = row + 8 * column + i % 2;
          out[column][i] = fmaf(of_p[i / 2 * 2 + 1], at[kStride], fmaf(of_p[i / 2 * 2], at[0], out[column][i]));
        }
    }
}

template <int M, int N>
__device__ __forceinline__ void clear(float (&sums)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
}
template <int M, int N>
__device__ __forceinline__ bool all_finite(const float (&sums)[M][N][4]) {
  float poison = 0;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) poison += sums[m][n][i] * 0;
  return poison == 0;
}

// The sum and the maximum over the four lanes that share rows.
__device__ __forceinline__ float quad_sum(float value) {
  value += device::shuffle_xor(value, 1);
  return value + device::shuffle_xor(value, 2);
}
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, device::shuffle_xor(value, 1));
  return fmaxf(value, device::shuffle_xor(value, 2));
}

// sum of d_out * out for a lane's two rows, d_out in shared memory; over the four lanes that share them.
template <int D, class T>
__device__ void mean_of_rows(float (&mean)[2], const T* d_out, const RowSource<T>& out, int first_row) {
  const int lane = int(device::lane());
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    float sum = 0;
    for (int column = lane % 4 * kWide; column < out.columns && first_row + row < out.rows; column += 4 * kWide) {
      const T* from = out.data + (first_row + row) * out.stride + column;
      const T* other = d_out + row * kTileStride<T, D> + column;
      float values[kWide] = {};
      if (out.wide && column + kWide <= out.columns) {
        load(values, from);
      } else {
        for (int j = 0; j < kWide && column + j < out.columns; ++j) values[j] = to_float(from[j]);
      }
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum = fmaf(values[j], to_float(other[j]), sum);
    }
    mean[i] = quad_sum(sum);
  }
}

}  // namespace keel::ops::cuda
