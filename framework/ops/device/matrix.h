// The matrix instructions of a warp on bf16: ldmatrix and mma.sync. All 32 lanes call together. What each lane holds of
// a fragment is the PTX ISA's layout; tests/support/cuda_host/matrix_layout.h has it as a table.
#pragma once

#include <cstdint>

#include "framework/ops/device/thread.h"

namespace keel::device {

// Four 8x8 matrices of bf16 from shared memory. Lane 8 m + r passes the address of row r of matrix m, a multiple of 16;
// each lane gets in registers[m] two neighbours of one row, row lane / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&registers)[4], const void* row) {
  const auto address = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed: two neighbours of one column, column lane / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&registers)[4], const void* row) {
  const auto address = unsigned(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

// sums [16, 8] fp32 += a [16, 16] bf16 * b [16, 8] bf16 (mma.sync.m16n8k16).
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace keel::device
