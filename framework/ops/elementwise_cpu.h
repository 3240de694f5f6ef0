// The CPU twins of elementwise.h; arguments are checked already.
#pragma once

#include "framework/ops/elementwise.h"

namespace keel::ops::cpu {

void convert(Tensor y, ConstTensor x);
void add(Tensor y, ConstTensor a, ConstTensor b);
void fill(Tensor y, float value);
void scale(Tensor y, float factor);
void add_sum_of_squares(Tensor total, ConstTensor x);
void add_out_of_range(Tensor counts, ConstTensor x);

struct OutOfRange {
  int64_t saturated = 0, flushed = 0;
};

// A matrix with dense rows, in fp32 or bf16.
struct Rows {
  void* data;
  int64_t stride_elements;
  DType dtype;
};
// y [rows, columns] = x in y's type.
void convert_rows(const Rows& y, const Rows& x, int64_t rows, int64_t columns);

// sums [columns] += the column sums of x [rows, columns], in an order that depends on the sizes only.
void add_column_sums(float* sums, const Rows& x, int64_t rows, int64_t columns);

}  // namespace keel::ops::cpu
