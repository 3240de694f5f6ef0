#include "framework/ops/norm.h"

#include "framework/base/trace.h"
#include "framework/ops/norm_cpu.h"
#include "framework/ops/norm_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check_rows(const char* op, const char* name, const ConstTensor& x, const ConstTensor& like) {
  require(x.dims() == 2 && x.shape() == like.shape() && x.contiguous(), "{}: {} must be contiguous {}, not {}", op,
          name, like.shape(), x.shape());
}

void check_vector(const char* op, const char* name, const ConstTensor& x, int64_t size) {
  require(x.defined() && x.shape() == Shape{size} && x.dtype() == DType::f32 && x.contiguous(),
          "{}: {} must be fp32 [{}], not {} {}", op, name, size, name_of(x.dtype()), x.shape());
}

void check_same(const char* op, const char* names, const ConstTensor& a, const ConstTensor& b) {
  require(a.dtype() == b.dtype(), "{}: {} have one element type, got {} and {}", op, names, name_of(a.dtype()),
          name_of(b.dtype()));
}

// What forward and backward share; x is the norm's input.
template <class Call>
void check_norm(const char* op, const Call& call) {
  check_rows(op, "x", call.x, call.x);
  check_vector(op, "the weight", call.weights.weight, call.x.size(1));
  check_vector(op, "inverse", call.statistics.inverse, call.x.size(0));
  if (call.options.kind == NormKind::layer) check_vector(op, "mean", call.statistics.mean, call.x.size(0));
  if (!call.weights.bias.defined()) return;
  require(call.options.kind == NormKind::layer, "{}: an rms norm has no bias", op);
  check_vector(op, "the bias", call.weights.bias, call.x.size(1));
}

}  // namespace

void norm_forward(const NormForward& call) {
  const Span span("norm_forward");
  const char* op = "norm_forward";
  const auto& [y, sum, statistics, x, branch, weights, options] = call;
  check_norm(op, call);
  check_rows(op, "y", y, x);
  require(sum.defined() == branch.defined(), "{}: a branch and the sum with it come together", op);
  if (branch.defined()) {
    check_rows(op, "sum", sum, x);
    check_rows(op, "branch", branch, x);
    check_same(op, "x and sum", x, sum);
    check_same(op, "branch and y", branch, y);
  }
  const DeviceKind device =
      device_of(y, sum, x, branch, statistics.inverse, statistics.mean, weights.weight, weights.bias);
  run_twin(device, cpu::norm_forward, cuda::norm_forward, call);
}

void norm_backward(const NormBackward& call) {
  const Span span("norm_backward");
  const char* op = "norm_backward";
  const auto& [dx, gradients, dy, x, statistics, weights, options, accumulate] = call;
  check_norm(op, call);
  check_rows(op, "dx", dx, x);
  check_rows(op, "dy", dy, x);
  check_same(op, "dx and x", dx, x);
  check_vector(op, "the gradient of the weight", gradients.d_weight, x.size(1));
  require(gradients.d_bias.defined() == weights.bias.defined(), "{}: a bias and its gradient come together", op);
  if (weights.bias.defined()) check_vector(op, "the gradient of the bias", gradients.d_bias, x.size(1));
  run_twin(device_of(dx, dy, x, statistics.inverse, statistics.mean, weights.weight, weights.bias, gradients.d_weight,
                     gradients.d_bias),
           cpu::norm_backward, cuda::norm_backward, call);
}

}  // namespace keel::ops
