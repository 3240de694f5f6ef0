#include "framework/ops/qk_norm/qk_clip.h"

#include "framework/ops/qk_norm/qk_clip_cpu.h"
#include "framework/ops/qk_norm/qk_clip_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(const char* op, const ConstTensor& x) {
  require(x.dtype() == DType::f32 && x.contiguous(), "{}: {} {}, must be dense fp32", op, name_of(x.dtype()),
          x.shape());
}

}  // namespace

void qk_clip_factors(Tensor factors, ConstTensor largest, ConstTensor gate, double tau) {
  for (const ConstTensor& x : {ConstTensor(factors), largest, gate}) check("qk_clip_factors", x);
  require(factors.shape() == largest.shape() && gate.elements() == 2 && tau > 0,
          "qk_clip_factors: {} from {}, a gate of {}, tau {}", factors.shape(), largest.shape(), gate.elements(), tau);
  run_twin(device_of(factors, largest, gate), cpu::qk_clip_factors, cuda::qk_clip_factors, factors, largest, gate, tau);
}

void smallest_of_rows(Tensor smallest, ConstTensor x) {
  check("smallest_of_rows", smallest);
  check("smallest_of_rows", x);
  require(x.dims() == 2 && smallest.shape() == Shape{x.size(0)} && x.size(1) > 0, "smallest_of_rows: {} from {}",
          smallest.shape(), x.shape());
  run_twin(device_of(smallest, x), cpu::smallest_of_rows, cuda::smallest_of_rows, smallest, x);
}

void scale_rows(Tensor weights, ConstTensor factors, float shift) {
  check("scale_rows", weights);
  check("scale_rows", factors);
  require(weights.dims() == 2 && (factors.elements() == weights.size(0) || factors.elements() == 1),
          "scale_rows: {} factors for {}", factors.elements(), weights.shape());
  run_twin(device_of(weights, factors), cpu::scale_rows, cuda::scale_rows, weights, factors, shift);
}

void clamp(Tensor weights, float low, float high) {
  check("clamp", weights);
  require(low <= high, "clamp: {} is above {}", low, high);
  run_twin(device_of(weights), cpu::clamp, cuda::clamp, weights, low, high);
}

}  // namespace keel::ops
