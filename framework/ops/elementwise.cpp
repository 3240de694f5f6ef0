#include "framework/ops/elementwise.h"

#include "framework/ops/elementwise_cpu.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void require_real(const char* op, const ConstTensor& tensor) {
  require(tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16, "{}: a {} tensor, must be fp32 or bf16", op,
          name_of(tensor.dtype()));
}

void require_dense(const char* op, const ConstTensor& tensor) {
  require_real(op, tensor);
  require(tensor.contiguous(), "{}: {} is not contiguous", op, tensor.shape());
}

}  // namespace

void convert(Tensor y, ConstTensor x) {
  require(y.shape() == x.shape(), "convert: {} from {}", y.shape(), x.shape());
  require_real("convert", y);
  require_real("convert", x);
  bool dense = y.contiguous() && x.contiguous();
  require(dense || x.dims() == 2, "convert: strided tensors have two dims, not {}", x.shape());
  if (runs_on_cpu(y, x)) cpu::convert(y, x);
}

void add(Tensor y, ConstTensor a, ConstTensor b) {
  require(a.shape() == b.shape() && y.shape() == a.shape(), "add: {} from {} and {}", y.shape(), a.shape(), b.shape());
  for (const ConstTensor& tensor : {ConstTensor(y), a, b}) require_dense("add", tensor);
  if (runs_on_cpu(y, a, b)) cpu::add(y, a, b);
}

void fill(Tensor y, float value) {
  require_dense("fill", y);
  if (runs_on_cpu(y)) cpu::fill(y, value);
}

void scale(Tensor y, float factor) {
  require_dense("scale", y);
  if (runs_on_cpu(y)) cpu::scale(y, factor);
}

double sum_of_squares(ConstTensor x) {
  require_dense("sum_of_squares", x);
  return runs_on_cpu(x) ? cpu::sum_of_squares(x) : 0;
}

double sum(ConstTensor x) {
  require_dense("sum", x);
  return runs_on_cpu(x) ? cpu::sum(x) : 0;
}

}  // namespace keel::ops
