#include "framework/ops/adamw.h"

#include "framework/ops/adamw_cpu.h"
#include "framework/ops/adamw_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

double adamw(const AdamwState& state, ConstTensor gradient, const AdamwStep& step) {
  require(gradient.dims() == 1, "adamw works on flat arenas, not on {}", gradient.shape());
  for (const ConstTensor& tensor :
       {ConstTensor(state.master), ConstTensor(state.moment1), ConstTensor(state.moment2), gradient}) {
    require(tensor.shape() == gradient.shape(), "adamw: state {} for gradient {}", tensor.shape(), gradient.shape());
    require(tensor.dtype() == DType::f32, "adamw: a {} tensor, must be fp32", name_of(tensor.dtype()));
  }
  if (state.compute.defined()) {
    require(state.compute.shape() == gradient.shape(), "adamw: compute copy {} for gradient {}", state.compute.shape(),
            gradient.shape());
    require(state.compute.dtype() == DType::bf16, "adamw: a {} compute copy, must be bf16",
            name_of(state.compute.dtype()));
  }
  require(step.updates >= 1, "adamw: update {}, the first is 1", step.updates);
  const DeviceKind device = device_of(gradient, state.master, state.moment1, state.moment2, state.compute);
  return run_twin(device, cpu::adamw, cuda::adamw, state, gradient, step);
}

}  // namespace keel::ops
