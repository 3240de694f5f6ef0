#include "framework/ops/logit_scale.h"

#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(ConstTensor heads, ConstTensor w) {
  require(!w.defined() || w.elements() == heads.elements() || w.elements() == 1, "logit scale: {} for {} heads",
          w.shape(), heads.elements());
}

}  // namespace

void logit_scale_forward(Tensor g, ConstTensor w, float g0) {
  check(g, w);
  if (!runs_on_cpu(g, w)) return;
  for (int64_t h = 0; h < g.elements(); ++h)
    g.as<float>()[h] = w.defined() ? g0 * w.as<float>()[w.elements() == 1 ? 0 : h] : g0;
}

void logit_scale_backward(Tensor dw, ConstTensor dg, float g0) {
  check(dg, dw);
  if (!runs_on_cpu(dw, dg)) return;
  for (int64_t h = 0; h < dg.elements(); ++h) dw.as<float>()[dw.elements() == 1 ? 0 : h] += g0 * dg.as<float>()[h];
}

}  // namespace keel::ops
