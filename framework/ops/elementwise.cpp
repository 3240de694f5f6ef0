#include "framework/ops/elementwise.h"

#include "framework/base/trace.h"
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

void add_sum_of_squares(Tensor total, ConstTensor x) {
  require_dense("add_sum_of_squares", x);
  require_scalar("add_sum_of_squares", total, DType::f64);
  run_twin(device_of(x, total), cpu::add_sum_of_squares, cuda::add_sum_of_squares, total, x);
}

void add_out_of_range(Tensor counts, ConstTensor x) {
  const Span span("add_out_of_range");
  require_dense("add_out_of_range", x);
  require(counts.shape() == Shape{2} && counts.dtype() == DType::f64, "add_out_of_range: {} {}, must be fp64 [2]",
          name_of(counts.dtype()), counts.shape());
  run_twin(device_of(x, counts), cpu::add_out_of_range, cuda::add_out_of_range, counts, x);
}

}  // namespace keel::ops
