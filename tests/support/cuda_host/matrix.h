// ldmatrix and mma.sync of a warp, by the layouts of matrix_layout.h.
#pragma once

#include <cstdint>
#include <source_location>

namespace keel::cuda_host {

struct MatrixLoad {
  uint32_t* registers;  // [4]
  const void* row;      // what this lane passes
  bool transposed;
};
void load_matrices(MatrixLoad load, const std::source_location& place);

struct MatrixProduct {
  float* sums;        // [4]
  const uint32_t* a;  // [4]
  const uint32_t* b;  // [2]
};
void multiply_add(MatrixProduct product, const std::source_location& place);

}  // namespace keel::cuda_host
