#include "framework/ops/update/update_gate.h"

#include "framework/ops/update/update_gate_cpu.h"
#include "framework/ops/update/update_gate_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(const char* name, const ConstTensor& x, int64_t size, DType dtype) {
  require(x.shape() == Shape{size} && x.dtype() == dtype, "update_gate: {} is {} {}, must be {} [{}]", name,
          name_of(x.dtype()), x.shape(), name_of(dtype), size);
}

}  // namespace

void update_gate(Tensor gate, Tensor values, const UpdateGateInputs& in, double clip_norm) {
  check("the gate", gate, 2, DType::f32);
  check("values", values, 4, DType::f64);
  check("sums", in.sums, 4, DType::f64);
  check("squares", in.squares, 1, DType::f64);
  check("limits", in.limits, 3, DType::f64);
  require(in.largest_logit.dtype() == DType::f32 && in.largest_logit.contiguous(),
          "update_gate: the largest logits are {} {}, must be dense fp32", name_of(in.largest_logit.dtype()),
          in.largest_logit.shape());
  run_twin(device_of(gate, values, in.sums, in.squares, in.largest_logit, in.limits), cpu::update_gate,
           cuda::update_gate, gate, values, in, clip_norm);
}

}  // namespace keel::ops
