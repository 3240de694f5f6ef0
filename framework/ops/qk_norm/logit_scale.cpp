#include "framework/ops/qk_norm/logit_scale.h"

#include "framework/ops/qk_norm/logit_scale_cpu.h"
#include "framework/ops/qk_norm/logit_scale_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(ConstTensor heads, ConstTensor w) {
  require(!w.defined() || w.elements() == heads.elements() || w.elements() == 1, "logit scale: {} for {} heads",
          w.shape(), heads.elements());
  for (const ConstTensor& tensor : {heads, w})
    require(tensor.dtype() == DType::f32, "logit scale: a {} tensor, must be fp32", name_of(tensor.dtype()));
}

}  // namespace

void logit_scale_forward(Tensor g, ConstTensor w, float g0) {
  check(g, w);
  run_twin(device_of(g, w), cpu::logit_scale_forward, cuda::logit_scale_forward, g, w, g0);
}

void logit_scale_backward(Tensor dw, ConstTensor dg, float g0) {
  check(dg, dw);
  run_twin(device_of(dw, dg), cpu::logit_scale_backward, cuda::logit_scale_backward, dw, dg, g0);
}

}  // namespace keel::ops
