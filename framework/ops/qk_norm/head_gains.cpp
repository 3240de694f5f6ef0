#include "framework/ops/qk_norm/head_gains.h"

#include "framework/base/trace.h"
#include "framework/ops/qk_norm/head_gains_cpu.h"
#include "framework/ops/qk_norm/head_gains_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(const char* name, const ConstTensor& weight, int64_t heads, int64_t width) {
  if (!weight.defined()) return;
  require(weight.dtype() == DType::f32 && weight.contiguous(), "head_gains: {} {} {}, must be dense fp32", name,
          name_of(weight.dtype()), weight.shape());
  require(weight.elements() == width || weight.elements() == heads * width,
          "head_gains: {} {} for {} heads of {}, or for all of them", name, weight.shape(), heads, width);
}

}  // namespace

void head_gains(const HeadGains& gains, const HeadGainWeights& weights) {
  const Span span("head_gains");
  const int64_t H = gains.q.elements(), G = gains.k.elements(), d = weights.head_dim;
  require(G > 0 && H % G == 0 && d > 0, "head_gains: {} query heads for {} key heads of {}", H, G, d);
  for (const Tensor& out : {gains.q, gains.k, gains.scale, gains.bound})
    require(out.dtype() == DType::f32 && out.contiguous() && (out.elements() == H || out.shape() == gains.k.shape()),
            "head_gains: {} {} for {} heads, must be dense fp32", name_of(out.dtype()), out.shape(), H);
  check("query gains", weights.q, H, d);
  check("key gains", weights.k, G, d);
  check("scales", weights.scale, H, 1);
  run_twin(device_of(gains.q, gains.k, gains.scale, gains.bound), cpu::head_gains, cuda::head_gains, gains, weights);
}

}  // namespace keel::ops
