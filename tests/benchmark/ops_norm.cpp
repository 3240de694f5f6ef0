// Norms: share of a copy's memory rate. Bytes counted: each activation once in, once out.
#include "framework/ops/norm.h"
#include "tests/benchmark/memory_rate.h"

namespace keel {
namespace {

struct Pass {
  Pass(DType stream, DType activation, ops::NormKind kind, int64_t width)
      : residual({kRows, width}, stream),
        sum({kRows, width}, stream),
        branch({kRows, width}, activation),
        y({kRows, width}, activation),
        weight({width}, DType::f32),
        d_weight({width}, DType::f32),
        inverse({kRows}, DType::f32),
        mean({kRows}, DType::f32) {
    options.kind = kind;
  }
  ops::NormStatistics statistics() const { return {inverse, mean}; }

  static constexpr int64_t kRows = 16384;
  OwnedTensor residual, sum, branch, y, weight, d_weight, inverse, mean;
  ops::NormOptions options;
};

void forward(benchmark::State& state, DType stream, DType activation, ops::NormKind kind, int64_t width) {
  Pass p(stream, activation, kind, width);
  benchmarking::measure(state, 2 * p.residual.tensor.size_bytes() + 2 * p.y.tensor.size_bytes(), [&] {
    ops::norm_forward({p.y, p.sum, p.statistics(), p.residual, p.branch, {p.weight, {}}, p.options});
  });
}

// dx accumulates: read and written.
void backward(benchmark::State& state, DType stream, DType activation, ops::NormKind kind, int64_t width) {
  Pass p(stream, activation, kind, width);
  benchmarking::measure(state, 3 * p.residual.tensor.size_bytes() + p.y.tensor.size_bytes(), [&] {
    ops::norm_backward({p.sum, {p.d_weight, {}}, p.y, p.residual, p.statistics(), {p.weight, {}}, p.options, true});
  });
}

BENCHMARK_CAPTURE(forward, rms_fp32_d1024, DType::f32, DType::f32, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(forward, rms_fp32_bf16_d1024, DType::f32, DType::bf16, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(forward, rms_bf16_d1024, DType::bf16, DType::bf16, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(forward, layer_bf16_d1024, DType::bf16, DType::bf16, ops::NormKind::layer, 1024)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_fp32_d1024, DType::f32, DType::f32, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_fp32_bf16_d1024, DType::f32, DType::bf16, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_bf16_d1024, DType::bf16, DType::bf16, ops::NormKind::rms, 1024)->UseManualTime();
BENCHMARK_CAPTURE(backward, layer_bf16_d1024, DType::bf16, DType::bf16, ops::NormKind::layer, 1024)->UseManualTime();

}  // namespace
}  // namespace keel
