#include "framework/ops/update/adamw.h"

#include <cmath>

#include "framework/base/trace.h"
#include "framework/ops/update/adamw_cpu.h"
#include "framework/ops/update/adamw_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

AdamwRates adamw_rates(const AdamwStep& step, const AdamwOptions& options) {
  require(step.updates >= 1, "adamw: update {}, the first is 1", step.updates);
  const auto updates = double(step.updates);
  return {float(step.lr / (1 - std::pow(options.beta1, updates))), float(1 / (1 - std::pow(options.beta2, updates))),
          float(step.decay)};
}

void adamw(Tensor change, const AdamwState& state, ConstTensor gradient, const AdamwControls& controls,
           const AdamwOptions& options) {
  const Span span("adamw");
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
  require_scalar("adamw: the change", change, DType::f64);
  for (auto [x, size] : {std::pair(controls.rates, 3), {controls.gate, 2}})
    require(x.shape() == Shape{size} && x.dtype() == DType::f32, "adamw: controls {} {}, must be fp32 [{}]",
            name_of(x.dtype()), x.shape(), size);
  const DeviceKind device = device_of(gradient, change, state.master, state.moment1, state.moment2, state.compute,
                                      controls.rates, controls.gate);
  run_twin(device, cpu::adamw, cuda::adamw, change, state, gradient, controls, options);
}

}  // namespace keel::ops
