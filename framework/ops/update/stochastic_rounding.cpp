#include "framework/ops/update/stochastic_rounding.h"

#include "framework/ops/update/stochastic_rounding_cpu.h"
#include "framework/ops/update/stochastic_rounding_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

void round_stochastically(Tensor y, ConstTensor x, const StochasticRounding& rounding) {
  require(y.shape() == x.shape() && y.dtype() == DType::bf16 && x.dtype() == DType::f32,
          "round_stochastically: {} {} from {} {}", name_of(y.dtype()), y.shape(), name_of(x.dtype()), x.shape());
  require(y.contiguous() && x.contiguous(), "round_stochastically: {} is not contiguous", x.shape());
  require_scalar("round_stochastically: updates", rounding.updates, DType::i64);
  require(rounding.gate.shape() == Shape{2} && rounding.gate.dtype() == DType::f32,
          "round_stochastically: the gate is {} {}, must be fp32 [2]", name_of(rounding.gate.dtype()),
          rounding.gate.shape());
  require(rounding.run > 0, "round_stochastically: runs of {} elements", rounding.run);
  run_twin(device_of(y, x, rounding.updates, rounding.gate), cpu::round_stochastically, cuda::round_stochastically, y,
           x, rounding);
}

}  // namespace keel::ops
