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

void check_norm(const char* op, const ConstTensor& x, const NormStatistics& statistics, const NormWeights& weights,
                const NormOptions& options) {
  check_rows(op, "x", x, x);
  check_vector(op, "the weight", weights.weight, x.size(1));
  check_vector(op, "inverse", statistics.inverse, x.size(0));
  if (options.kind == NormKind::layer) check_vector(op, "mean", statistics.mean, x.size(0));
  if (!weights.bias.defined()) return;
  require(options.kind == NormKind::layer, "{}: an rms norm has no bias", op);
  check_vector(op, "the bias", weights.bias, x.size(1));
}

}  // namespace

void norm_forward(Tensor y, NormStatistics statistics, ConstTensor x, const NormWeights& weights,
                  const NormOptions& options) {
  const Span span("norm_forward");
  const char* op = "norm_forward";
  check_norm(op, x, statistics, weights, options);
  check_rows(op, "y", y, x);
  const DeviceKind device = device_of(y, x, statistics.inverse, statistics.mean, weights.weight, weights.bias);
  run_twin(device, cpu::norm_forward, cuda::norm_forward, NormForward{y, {}, statistics, x, {}, weights, options});
}

void residual_norm_forward(Tensor y, Tensor sum, NormStatistics statistics, ConstTensor residual, ConstTensor branch,
                           const NormWeights& weights, const NormOptions& options) {
  const Span span("residual_norm_forward");
  const char* op = "residual_norm_forward";
  check_norm(op, residual, statistics, weights, options);
  check_rows(op, "y", y, residual);
  check_rows(op, "sum", sum, residual);
  check_rows(op, "branch", branch, residual);
  check_same(op, "residual and sum", residual, sum);
  check_same(op, "branch and y", branch, y);
  const DeviceKind device =
      device_of(y, sum, residual, branch, statistics.inverse, statistics.mean, weights.weight, weights.bias);
  run_twin(device, cpu::norm_forward, cuda::norm_forward,
           NormForward{y, sum, statistics, residual, branch, weights, options});
}

void norm_backward(Tensor dx, const NormGradients& gradients, ConstTensor dy, ConstTensor x,
                   const NormStatistics& statistics, const NormWeights& weights, const NormOptions& options,
                   bool accumulate) {
  const Span span("norm_backward");
  const char* op = "norm_backward";
  check_norm(op, x, statistics, weights, options);
  check_rows(op, "dx", dx, x);
  check_rows(op, "dy", dy, x);
  check_same(op, "dx and x", dx, x);
  check_vector(op, "the gradient of the weight", gradients.d_weight, x.size(1));
  require(gradients.d_bias.defined() == weights.bias.defined(), "{}: a bias and its gradient come together", op);
  if (weights.bias.defined()) check_vector(op, "the gradient of the bias", gradients.d_bias, x.size(1));
  const DeviceKind device = device_of(dx, dy, x, statistics.inverse, statistics.mean, weights.weight, weights.bias,
                                      gradients.d_weight, gradients.d_bias);
  run_twin(device, cpu::norm_backward, cuda::norm_backward,
           NormBackward{dx, dy, x, statistics, weights, options, accumulate}, gradients);
}

}  // namespace keel::ops
