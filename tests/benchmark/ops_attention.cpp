// Attention against the rate of a large sgemm measured in the same run. Operations count visible pairs only: 4 d per
// pair forward (q k, p v), 10 d backward.
#include <benchmark/benchmark.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "framework/ops/attention/attention.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

double seconds_of(auto&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Operations per second of one 1024^3 product.
double sgemm_rate() {
  constexpr int n = 1024;
  static std::vector<float> a(n * n, 1.f), b(n * n, 1.f), c(n * n);
  const double seconds = seconds_of([] {
    if (dnnl_sgemm('N', 'N', n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n) != dnnl_success)
      throw Error(ErrorKind::internal, "dnnl_sgemm failed");
  });
  return 2.0 * n * n * n / seconds;
}

void fill(const Tensor& tensor) {
  uint32_t state = 1;
  dispatch_float(tensor.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      state = state * 1664525u + 1013904223u;
      tensor.as<T>()[i] = T(float(state >> 8) * 0x1p-23f - 1);
    }
  });
}

// q, k and v as the model has them: q and k of their own, v inside the QKV product.
struct Problem {
  int64_t B, T, H, d;
  OwnedTensor q, k, qkv, out, d_out, dq, dk, dv, log_sum_exp, largest, scale, d_scale;
  AttentionInputs inputs;
  AttentionOutputs outputs;

  Problem(int64_t B, int64_t T, int64_t H, int64_t d, DType dtype) : B(B), T(T), H(H), d(d) {
    for (OwnedTensor* x : {&q, &k, &out, &d_out, &dq, &dk, &dv}) *x = OwnedTensor({B, T, H, d}, dtype);
    qkv = OwnedTensor({B, T, 3 * H, d}, dtype);
    log_sum_exp = OwnedTensor({B, H, T}, DType::f32);
    for (OwnedTensor* x : {&largest, &scale, &d_scale}) *x = OwnedTensor({H}, DType::f32);
    for (const OwnedTensor* x : {&q, &k, &qkv, &d_out}) fill(*x);
    std::fill_n(scale.tensor.as<float>(), H, 0.5f);
    inputs = {q, k, qkv.tensor.slice(2, 2 * H, 3 * H), scale, {}};
    outputs = {out, log_sum_exp, largest, {}};
  }
  double pairs() const { return double(B * H) * double(T) * double(T + 1) / 2; }
};

// The best of both, taken in turns, so that what else runs on the machine disturbs them alike.
void run(benchmark::State& state, bool backward) {
  Problem p(state.range(0), state.range(1), state.range(2), state.range(3), state.range(4) ? DType::bf16 : DType::f32);
  const auto once = [&] {
    if (backward)
      attention_backward({p.dq, p.dk, p.dv, p.d_scale}, p.d_out, p.outputs, p.inputs, {});
    else
      attention_forward(p.outputs, p.inputs, {});
  };
  attention_forward(p.outputs, p.inputs, {});
  once();
  double best = 1e9, gemm = 0;
  for (auto _ : state) {
    best = std::min(best, seconds_of(once));
    state.PauseTiming();
    gemm = std::max(gemm, sgemm_rate());
    state.ResumeTiming();
  }
  const double rate = p.pairs() * double(p.d) * (backward ? 10 : 4) / best;
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["sgemm"] = gemm * 1e-9;
  state.counters["share"] = rate / gemm;
}

void attention_forward_rate(benchmark::State& state) {
  run(state, false);
}
void attention_backward_rate(benchmark::State& state) {
  run(state, true);
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "T", "H", "d", "bf16"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (int bf16 : {0, 1}) {
    benchmark->Args({8, 256, 6, 64, bf16})->Args({2, 512, 12, 64, bf16});
    benchmark->Args({8, 128, 6, 64, bf16})->Args({1, 2048, 4, 64, bf16});
    benchmark->Args({4, 256, 6, 128, bf16})->Args({1, 2048, 2, 128, bf16});
  }
}
BENCHMARK(attention_forward_rate)->Apply(shapes);
BENCHMARK(attention_backward_rate)->Apply(shapes);

}  // namespace
}  // namespace keel::ops

BENCHMARK_MAIN();
