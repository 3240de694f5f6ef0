// Activations: share of a copy's memory rate. Bytes counted: each tensor once in or out.
#include "framework/ops/activation.h"
#include "tests/benchmark/memory_rate.h"

namespace keel {
namespace {

constexpr int64_t kRows = 4096, kFeatures = 2816;

void forward(benchmark::State& state, DType dtype, ops::ActivationKind kind) {
  OwnedTensor x({kRows, ops::is_gated(kind) ? 2 * kFeatures : kFeatures}, dtype), y({kRows, kFeatures}, dtype);
  benchmarking::measure(state, x.tensor.size_bytes() + y.tensor.size_bytes(),
                        [&] { ops::activation_forward(y, x, kind); });
}

void backward(benchmark::State& state, DType dtype, ops::ActivationKind kind) {
  OwnedTensor x({kRows, ops::is_gated(kind) ? 2 * kFeatures : kFeatures}, dtype), y({kRows, kFeatures}, dtype);
  OwnedTensor dx(x.tensor.shape(), dtype);
  benchmarking::measure(state, 2 * x.tensor.size_bytes() + 2 * y.tensor.size_bytes(),
                        [&] { ops::activation_backward(dx, y, y, x, kind); });
}

BENCHMARK_CAPTURE(forward, swiglu_fp32, DType::f32, ops::ActivationKind::swiglu)->UseManualTime();
BENCHMARK_CAPTURE(forward, swiglu_bf16, DType::bf16, ops::ActivationKind::swiglu)->UseManualTime();
BENCHMARK_CAPTURE(forward, geglu_bf16, DType::bf16, ops::ActivationKind::geglu)->UseManualTime();
BENCHMARK_CAPTURE(forward, gelu_bf16, DType::bf16, ops::ActivationKind::gelu)->UseManualTime();
BENCHMARK_CAPTURE(backward, swiglu_fp32, DType::f32, ops::ActivationKind::swiglu)->UseManualTime();
BENCHMARK_CAPTURE(backward, swiglu_bf16, DType::bf16, ops::ActivationKind::swiglu)->UseManualTime();
BENCHMARK_CAPTURE(backward, geglu_bf16, DType::bf16, ops::ActivationKind::geglu)->UseManualTime();
BENCHMARK_CAPTURE(backward, gelu_bf16, DType::bf16, ops::ActivationKind::gelu)->UseManualTime();

}  // namespace
}  // namespace keel
