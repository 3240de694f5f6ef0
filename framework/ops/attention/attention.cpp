#include "framework/ops/attention/attention.h"

#include <algorithm>
#include <cmath>

#include "framework/base/trace.h"
#include "framework/ops/attention/attention_cpu.h"
#include "framework/ops/attention/attention_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

static void check_tensor(const ConstTensor& tensor, const char* name, const Shape& shape, DType dtype) {
  require(tensor.defined(), "attention: {} is missing", name);
  require(tensor.shape() == shape, "attention: {} is {}, {} is needed", name, tensor.shape(), shape);
  require(tensor.dtype() == dtype, "attention: {} is {}, {} is needed", name, name_of(tensor.dtype()), name_of(dtype));
}

static void check_contiguous(const ConstTensor& tensor, const char* name, const Shape& shape, DType dtype) {
  check_tensor(tensor, name, shape, dtype);
  require(tensor.contiguous(), "attention: {} {} must be contiguous", name, shape);
}

static void check_inputs(const AttentionInputs& inputs, const AttentionOptions& options) {
  const ConstTensor &q = inputs.q, &k = inputs.k;
  require(q.defined() && k.defined() && q.dims() == 4 && k.dims() == 4, "attention: q and k need 4 dims, not {} and {}",
          q.dims(), k.dims());
  require(q.dtype() == DType::f32 || q.dtype() == DType::bf16, "attention: q is {}, fp32 or bf16 is needed",
          name_of(q.dtype()));
  require(q.elements() > 0 && k.elements() > 0, "attention: q {} or k {} is empty", q.shape(), k.shape());
  check_tensor(k, "k", {q.size(0), k.size(1), k.size(2), q.size(3)}, q.dtype());
  check_tensor(inputs.v, "v", k.shape(), q.dtype());
  require(q.size(2) % k.size(2) == 0, "attention: {} query heads cannot share {} KV heads", q.size(2), k.size(2));
  check_contiguous(inputs.scale, "scale", {q.size(2)}, DType::f32);
  if (inputs.first_key.defined()) check_tensor(inputs.first_key, "first_key", {q.size(0), q.size(1)}, DType::i32);
  require(options.window >= 0, "attention: a window of {} keys", options.window);
  require(options.window == 0 || options.causal, "attention: a window of {} keys needs a causal mask", options.window);
  require(options.softcap >= 0 && std::isfinite(options.softcap), "attention: a soft-cap of {}", options.softcap);
}

static void check_saved(const AttentionOutputs& outputs, const AttentionInputs& inputs) {
  const Shape& shape = inputs.q.shape();
  check_contiguous(outputs.out, "out", shape, inputs.q.dtype());
  check_contiguous(outputs.log_sum_exp, "log_sum_exp", {shape[0], shape[2], shape[1]}, DType::f32);
}

static void check_place(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                        const AttentionOptions& options) {
  require(outputs.largest_logit.defined(), "attention: the place of a largest logit that is not wanted");
  check_contiguous(outputs.place, "place", {inputs.q.size(2)}, DType::i64);
  require(std::max(inputs.q.size(1), inputs.k.size(1)) <= LogitPlace::kMostPositions &&
              options.first_sequence + inputs.q.size(0) <= LogitPlace::kMostSequences,
          "attention: places have room for {} positions and {} sequences of a step", LogitPlace::kMostPositions,
          LogitPlace::kMostSequences);
}

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  const Span span("attention_forward");
  check_inputs(inputs, options);
  check_saved(outputs, inputs);
  if (outputs.largest_logit.defined())
    check_contiguous(outputs.largest_logit, "largest_logit", {inputs.q.size(2)}, DType::f32);
  if (outputs.place.defined()) check_place(outputs, inputs, options);
  if (outputs.entropy.defined()) check_contiguous(outputs.entropy, "entropy", {inputs.q.size(2)}, DType::f32);
  const DeviceKind device = device_of(outputs.out, outputs.log_sum_exp, outputs.largest_logit, outputs.entropy,
                                      outputs.place, inputs.q, inputs.k, inputs.v, inputs.scale, inputs.first_key);
  run_twin(device, cpu::attention_forward, cuda::attention_forward, outputs, inputs, options);
}

void require_attention_fits(Device device, DType dtype, int64_t head_dim, bool training) {
  if (device.kind != DeviceKind::cuda) return;
  cuda::require_forward_fits(device, dtype, head_dim);
  if (training) cuda::require_backward_fits(device, dtype, head_dim);
}

void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options) {
  const Span span("attention_backward");
  check_inputs(inputs, options);
  check_saved(outputs, inputs);
  check_tensor(d_out, "d_out", inputs.q.shape(), inputs.q.dtype());
  check_tensor(gradients.dq, "dq", inputs.q.shape(), inputs.q.dtype());
  check_tensor(gradients.dk, "dk", inputs.k.shape(), inputs.q.dtype());
  check_tensor(gradients.dv, "dv", inputs.k.shape(), inputs.q.dtype());
  if (gradients.d_scale.defined()) check_contiguous(gradients.d_scale, "d_scale", {inputs.q.size(2)}, DType::f32);
  const DeviceKind device =
      device_of(gradients.dq, gradients.dk, gradients.dv, gradients.d_scale, d_out, outputs.out, outputs.log_sum_exp,
                inputs.q, inputs.k, inputs.v, inputs.scale, inputs.first_key);
  run_twin(device, cpu::attention_backward, cuda::attention_backward, gradients, d_out, outputs, inputs, options);
}

}  // namespace keel::ops
