#include "framework/ops/embedding.h"

#include "framework/base/trace.h"
#include "framework/ops/embedding_cpu.h"
#include "framework/ops/embedding_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

// values [n, D], table [rows, D], ids [n].
void require_lookup(const char* op, const ConstTensor& values, const ConstTensor& table, const ConstTensor& ids) {
  require(values.dims() == 2 && table.dims() == 2, "{}: {} from table {}", op, values.shape(), table.shape());
  require(values.size(1) == table.size(1), "{}: rows of {} from a table of {}", op, values.size(1), table.size(1));
  for (DType dtype : {values.dtype(), table.dtype()})
    require(dtype == DType::f32 || dtype == DType::bf16, "{}: a {} tensor, must be fp32 or bf16", op, name_of(dtype));
  require(ids.elements() == values.size(0), "{}: {} ids for {} rows", op, ids.elements(), values.size(0));
  require(ids.dtype() == DType::i32, "{}: {} ids, must be int32", op, name_of(ids.dtype()));
  require(ids.contiguous(), "{}: ids {} are strided", op, ids.shape());
}

}  // namespace

void embedding_forward(Tensor y, ConstTensor table, ConstTensor ids, int64_t first_id, float factor) {
  const Span span("embedding_forward");
  require_lookup("embedding_forward", y, table, ids);
  run_twin(device_of(y, table, ids), cpu::embedding_forward, cuda::embedding_forward, y, table, ids, first_id, factor);
}

void embedding_backward(Tensor d_table, ConstTensor dy, ConstTensor ids, int64_t first_id, float factor) {
  const Span span("embedding_backward");
  require_lookup("embedding_backward", dy, d_table, ids);
  require(d_table.dtype() == DType::f32, "embedding_backward: a {} gradient, must be fp32", name_of(d_table.dtype()));
  run_twin(device_of(d_table, dy, ids), cpu::embedding_backward, cuda::embedding_backward, d_table, dy, ids, first_id,
           factor);
}

}  // namespace keel::ops
