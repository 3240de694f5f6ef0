// Matrix products by oneDNN, on the CPU: with onednn_version.h the only file that speaks its API. Primitives are
// compiled once per shape, strides and types, and kept per thread, so nothing is locked.
#pragma once

#include <memory>
#include <string>

#include "framework/tensor/buffer.h"

namespace keel::ops::onednn {

// A view by two strides, in elements, one of which is 1; transposing swaps them.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  DType dtype = DType::f32;
};
Matrix matrix_of(const ConstTensor& tensor);  // [rows, columns]
Matrix transposed(const Matrix& matrix);
// Rows [row, row + rows) and columns [column, column + columns).
Matrix block_of(const Matrix& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns);

// Elements from row to row of a product's first factor and of its result.
struct RowStrides {
  int64_t a, c;
  bool operator==(const RowStrides&) const = default;
};

// A matrix copied into the layout that products want their second factor in.
class Blocked {
 public:
  Blocked();
  ~Blocked();
  Blocked(Blocked&&) noexcept;
  Blocked& operator=(Blocked&&) noexcept;

  // Copies `b`, in the blocked layout that oneDNN prefers for it as the second factor between such rows. Stays
  // undefined, and holds no memory, where the library is content with plain rows or cannot multiply the type. Matrices
  // after the first that are like it are only copied. Without data it only says how large it would be.
  void assign_preferred(const Matrix& b, const RowStrides& strides);
  // Copies `b` into tiles of 16 rows by `tile_columns` (16 or 64).
  void assign_tiles(const Matrix& b, int tile_columns);
  bool defined() const;
  int64_t size_bytes() const;

  struct Layout;
  const Layout& layout() const { return *layout_; }
  std::byte* data() const { return buffer_.data(); }

 private:
  void set_layout(const Matrix& b, std::unique_ptr<Layout> layout);
  void copy(const Matrix& b);

  Matrix like_{};  // what the layout was chosen for
  RowStrides strides_{};
  std::unique_ptr<Layout> layout_;
  Buffer buffer_;
};

// c = a b, + bias [columns of c] on every row, + c where `accumulate`. Bias is fp32.
struct Product {
  Matrix c;
  Matrix a;
  Matrix b;
  const float* bias = nullptr;
  bool accumulate = false;
};
// How far the library may go to run a product.
enum class Effort {
  fast,       // only its tuned kernels
  reference,  // also its plain loops: right, but slow
};
// Runs the product, or returns false where oneDNN has no implementation for it. With `blocked`, that copy is read in
// place of b's memory. Sizes are at least 1.
bool run(const Product& product, Effort effort, const Blocked* blocked = nullptr);

// Lets this thread's products go, and the scratch memory that the library keeps while there are any: it is as large as
// the largest of them wanted. The next product compiles anew.
void forget_products();

// Whether this CPU and library multiply bf16 in instructions made for it, and not more slowly than fp32; otherwise why
// not. DNNL_MAX_CPU_ISA in the environment overrules what is slow: AVX512_CORE_BF16.
struct Bf16Support {
  bool native = false;
  std::string reason;
};
Bf16Support bf16_support();
// "oneDNN 2.6.3, AVX2"
std::string version_and_instructions();

}  // namespace keel::ops::onednn
