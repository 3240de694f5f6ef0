#include "framework/ops/bias.h"

#include "framework/ops/bias_cpu.h"
#include "framework/ops/bias_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

void add_bias(Tensor y, ConstTensor bias) {
  require(y.contiguous() && y.size(-1) == bias.elements(), "a bias {} on {}", bias.shape(), y.shape());
  require(bias.dtype() == DType::f32, "a {} bias, must be fp32", name_of(bias.dtype()));
  run_twin(device_of(y, bias), cpu::add_bias, cuda::add_bias, y, bias);
}

}  // namespace keel::ops
