#include "framework/ops/elementwise.h"

#include "framework/ops/elementwise_cpu.h"
#include "framework/ops/elementwise_cuda.h"
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
  run_twin(device_of(y, x), cpu::convert, cuda::convert, y, x);
}

void add(Tensor y, ConstTensor a, ConstTensor b) {
  require(a.shape() == b.shape() && y.shape() == a.shape(), "add: {} from {} and {}", y.shape(), a.shape(), b.shape());
  for (const ConstTensor& tensor : {ConstTensor(y), a, b}) require_dense("add", tensor);
  run_twin(device_of(y, a, b), cpu::add, cuda::add, y, a, b);
}

void fill(Tensor y, float value) {
  require_dense("fill", y);
  run_twin(device_of(y), cpu::fill, cuda::fill, y, value);
}

void scale(Tensor y, float factor) {
  require_dense("scale", y);
  run_twin(device_of(y), cpu::scale, cuda::scale, y, factor);
}

double sum_of_squares(ConstTensor x) {
  require_dense("sum_of_squares", x);
  return run_twin(device_of(x), cpu::sum_of_squares, cuda::sum_of_squares, x);
}

double sum(ConstTensor x) {
  require_dense("sum", x);
  return run_twin(device_of(x), cpu::sum, cuda::sum, x);
}

}  // namespace keel::ops
