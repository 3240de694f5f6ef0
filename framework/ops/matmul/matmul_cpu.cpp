#include "framework/ops/matmul/matmul_cpu.h"

#include <algorithm>
#include <vector>

#include "framework/ops/elementwise_cpu.h"

namespace keel::ops::cpu {
namespace {

using onednn::Effort;
using onednn::Matrix;
using onednn::Product;

// Large enough that oneDNN runs at full rate and converting costs little beside it.
constexpr int64_t kBlock = 2048;

// [0, size) in equal blocks of at most kBlock, multiples of 16 but for the last.
int64_t block_size(int64_t size) {
  int64_t blocks = (size + kBlock - 1) / kBlock;
  int64_t each = (size + blocks - 1) / blocks;
  return std::min(kBlock, (each + 15) / 16 * 16);
}

template <class F>
void for_blocks(int64_t size, const F& f) {
  for (int64_t begin = 0, step = block_size(size); begin < size; begin += step) f(begin, std::min(step, size - begin));
}

// Grows on first use, up to kBlock^2 floats.
class Scratch {
 public:
  Matrix matrix(int64_t rows, int64_t columns) {
    const int64_t stride = columns % 1024 == 0 ? columns + 16 : columns;  // as Arena::take_rows
    memory_.resize(std::max(memory_.size(), size_t(rows * stride)));
    return {memory_.data(), rows, columns, stride, 1, DType::f32};
  }

 private:
  std::vector<float> memory_;
};

struct Scratches {
  Scratch a, b, c;
};

Rows rows_of(const Matrix& matrix) {
  return {matrix.data, matrix.row_stride, matrix.dtype};
}

// The matrix in fp32: itself, or widened into scratch with its rows (or columns) as dense as they were.
Matrix widened(const Matrix& matrix, Scratch& scratch) {
  if (matrix.dtype == DType::f32) return matrix;
  bool by_rows = matrix.column_stride == 1;
  Matrix stored = by_rows ? matrix : transposed(matrix);
  Matrix wide = scratch.matrix(stored.rows, stored.columns);
  convert_rows(rows_of(wide), rows_of(stored), stored.rows, stored.columns);
  return by_rows ? wide : transposed(wide);
}

// Of one column, over one, or with one row whose elements lie apart: nothing for a library, and oneDNN 3.7 overlooks
// strides there.
bool is_thin(const Product& product) {
  return product.c.columns == 1 || product.a.columns == 1 || (product.a.rows == 1 && product.a.column_stride != 1);
}
void thin_product(const Product& product) {
  const auto& [c, a, b, bias, accumulate] = product;
  const auto at = [](const Matrix& x, int64_t row, int64_t column) {
    return static_cast<float*>(x.data) + row * x.row_stride + column * x.column_stride;
  };
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t column = 0; column < c.columns; ++column) {
      double sum = (bias ? bias[column] : 0.0) + (accumulate ? *at(c, row, column) : 0.0);
      for (int64_t i = 0; i < a.columns; ++i) sum += double(*at(a, row, i)) * double(*at(b, i, column));
      *at(c, row, column) = float(sum);
    }
}

void run_fp32(const Product& product) {
  if (is_thin(product)) return thin_product(product);
  bool ran = onednn::run(product, Effort::reference);
  require(ran, "oneDNN refuses an fp32 product of [{}, {}] and [{}, {}]", product.a.rows, product.a.columns,
          product.b.rows, product.b.columns);
}

// Nothing to add up: c = bias, 0, or itself.
void product_of_nothing(const Product& product) {
  require(!product.bias, "a bias on a product over 0 columns");
  if (product.accumulate) return;
  for (int64_t row = 0; row < product.c.rows; ++row)
    std::fill_n(static_cast<std::byte*>(product.c.data) + row * product.c.row_stride * bytes_of(product.c.dtype),
                product.c.columns * bytes_of(product.c.dtype), std::byte{0});
}

// One block of c: the sum over blocks of the inner size, in place or, for bf16, in scratch that is rounded at the end.
void widened_block(const Product& block, Scratches& scratch) {
  bool narrow = block.c.dtype == DType::bf16;
  Matrix sum = narrow ? scratch.c.matrix(block.c.rows, block.c.columns) : block.c;
  for_blocks(block.a.columns, [&](int64_t begin, int64_t size) {
    Matrix a = widened(block_of(block.a, 0, block.a.rows, begin, size), scratch.a);
    Matrix b = widened(block_of(block.b, begin, size, 0, block.b.columns), scratch.b);
    run_fp32({sum, a, b, begin == 0 ? block.bias : nullptr, begin > 0 || block.accumulate});
  });
  if (narrow) convert_rows(rows_of(block.c), rows_of(sum), sum.rows, sum.columns);
}

}  // namespace

void widened_product(const Product& product) {
  thread_local Scratches scratch;
  for_blocks(product.c.columns, [&](int64_t column, int64_t columns) {
    for_blocks(product.c.rows, [&](int64_t row, int64_t rows) {
      Product block = product;
      block.c = block_of(product.c, row, rows, column, columns);
      block.a = block_of(product.a, row, rows, 0, product.a.columns);
      block.b = block_of(product.b, 0, product.b.rows, column, columns);
      if (product.bias) block.bias = product.bias + column;
      widened_block(block, scratch);
    });
  });
}

void product(const Product& product, const onednn::Blocked* blocked) {
  if (product.c.rows == 0 || product.c.columns == 0) return;
  if (product.a.columns == 0) return product_of_nothing(product);
  if (blocked && blocked->defined() && !is_thin(product) && onednn::run(product, Effort::fast, blocked)) return;
  if (product.b.dtype == DType::f32 && product.a.dtype == DType::f32) return run_fp32(product);
  bool direct = product.b.dtype == DType::bf16 && bf16_support().native && onednn::run(product, Effort::fast);
  if (!direct) widened_product(product);
}

const onednn::Bf16Support& bf16_support() {
  static const onednn::Bf16Support support = onednn::bf16_support();
  return support;
}

}  // namespace keel::ops::cpu
