#include "framework/ops/qk_norm/logit_scale_cpu.h"

namespace keel::ops::cpu {

void logit_scale_forward(Tensor g, ConstTensor w, float g0) {
  for (int64_t h = 0; h < g.elements(); ++h)
    g.as<float>()[h] = w.defined() ? g0 * w.as<float>()[w.elements() == 1 ? 0 : h] : g0;
}

void logit_scale_backward(Tensor dw, ConstTensor dg, float g0) {
  for (int64_t h = 0; h < dg.elements(); ++h) dw.as<float>()[dw.elements() == 1 ? 0 : h] += g0 * dg.as<float>()[h];
}

}  // namespace keel::ops::cpu
