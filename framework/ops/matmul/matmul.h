// Matrix products: every large product of a model goes through here (oneDNN on CPUs). Products accumulate in fp32
// whatever the element types. Operands may have strided rows.
#pragma once

#include <memory>

#include "framework/tensor/buffer.h"

namespace keel::ops {

struct MatmulOptions {
  bool transpose_a = false;  // a is stored [K, M]
  bool transpose_b = false;  // b is stored [N, K]
  bool accumulate = false;   // c += a b; fp32 c only
};

// c [M, N] = a [M, K] b [K, N]. a and b have one element type (fp32 or bf16), c is of that type or fp32.
void matmul(Tensor c, ConstTensor a, ConstTensor b, MatmulOptions options = {});

// Which matrices of a linear layer lie in rows of Arena::take_rows, not side by side.
struct WideRows {
  bool x = false, y = false, dx = false, dy = false;
};

// A weight W [N, K] in the forms that its products want, refreshed once after each update of W:
// blocked bf16 where bf16 products are native, fp32 values rounded to bf16 where they are not, and W itself where plain
// rows are as fast (fp32), or all that can be read beside such matrices. Owns its memory, allocated at the first
// refresh; on the meta device it is only counted.
class PackedWeight {
 public:
  PackedWeight();
  ~PackedWeight();
  PackedWeight(PackedWeight&&) noexcept;
  PackedWeight& operator=(PackedWeight&&) noexcept;

  // `weight` is the parameter's compute copy; W [N, K] in the activations' type. It must outlive the packed form.
  void refresh(ConstTensor weight, const WideRows& wide = {});
  int64_t size_bytes() const;
  int64_t rows() const;     // N, outputs
  int64_t columns() const;  // K, inputs

  struct Forms;
  const Forms& forms() const;

 private:
  std::unique_ptr<Forms> forms_;
};

// y [n, N] = x [n, K] W^T + bias [N] (fp32, optional).
void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias = {});
// dx [n, K] = dy [n, N] W.
void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight);
// dW [N, K] += dy^T x, fp32.
void linear_backward_weight(Tensor d_weight, ConstTensor dy, ConstTensor x);
// db [N] += the column sums of dy, fp32, in an order that depends on the sizes only.
void linear_backward_bias(Tensor d_bias, ConstTensor dy);

// Whether bf16 products run as such. Where the CPU has no instructions for them, or slow ones, they run as fp32 products
// of rounded values.
bool bf16_products_are_native();
// "oneDNN 2.6.3, AVX2": for `keel doctor` and environment.json.
std::string product_backend();

}  // namespace keel::ops
