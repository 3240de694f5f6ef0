// The products of a linear layer as shares of this machine's best fp32 product, measured in the same run.
#include <benchmark/benchmark.h>

#include <chrono>

#include "framework/ops/elementwise.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/ops/matmul/product_rate.h"

namespace keel::ops {
namespace {

double fp32_rate() {
  static const double rate = measure_product_rate(DType::f32, {.seconds = 2});
  return rate;
}

struct Layer {
  Layer(const benchmark::State& state, DType dtype)
      : x({state.range(0), state.range(2)}, dtype),
        y({state.range(0), state.range(1)}, dtype),
        weight({state.range(1), state.range(2)}, dtype),
        d_weight({state.range(1), state.range(2)}, DType::f32),
        bias({state.range(1)}, DType::f32) {
    for (const Tensor& tensor : {x.tensor, y.tensor, weight.tensor}) fill(tensor, 0.5f);
    packed.refresh(weight);
  }
  OwnedTensor x, y, weight, d_weight, bias;
  PackedWeight packed;
};

// Best time, since the machine is shared: each repetition is timed alone.
template <class F>
void measure(benchmark::State& state, const F& f) {
  double best_seconds = 1e30, operations = 2.0 * double(state.range(0) * state.range(1) * state.range(2));
  for (auto _ : state) {
    auto start = std::chrono::steady_clock::now();
    f();
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best_seconds = std::min(best_seconds, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["GFLOP/s"] = operations / best_seconds * 1e-9;
  state.counters["of_fp32_peak"] = operations / best_seconds / fp32_rate();
}

template <DType kType>
void forward(benchmark::State& state) {
  Layer layer(state, kType);
  measure(state, [&] { linear_forward(layer.y, layer.x, layer.packed); });
}
template <DType kType>
void forward_with_bias(benchmark::State& state) {
  Layer layer(state, kType);
  measure(state, [&] { linear_forward(layer.y, layer.x, layer.packed, layer.bias); });
}
template <DType kType>
void backward_input(benchmark::State& state) {
  Layer layer(state, kType);
  measure(state, [&] { linear_backward_input(layer.x, layer.y, layer.packed); });
}
template <DType kType>
void backward_weight(benchmark::State& state) {
  Layer layer(state, kType);
  measure(state, [&] { linear_backward_weight(layer.d_weight, layer.y, layer.x); });
}

// Tokens, outputs, inputs.
void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"n", "N", "K"})->UseManualTime()->MinTime(0.5);
  b->Args({2048, 1152, 384})->Args({4096, 384, 1024})->Args({2048, 2048, 2048})->Args({256, 768, 768});
}

BENCHMARK_TEMPLATE(forward, DType::f32)->Apply(shapes);
BENCHMARK_TEMPLATE(forward, DType::bf16)->Apply(shapes);
BENCHMARK_TEMPLATE(forward_with_bias, DType::f32)->Apply(shapes);
BENCHMARK_TEMPLATE(forward_with_bias, DType::bf16)->Apply(shapes);
BENCHMARK_TEMPLATE(backward_input, DType::f32)->Apply(shapes);
BENCHMARK_TEMPLATE(backward_input, DType::bf16)->Apply(shapes);
BENCHMARK_TEMPLATE(backward_weight, DType::f32)->Apply(shapes);
BENCHMARK_TEMPLATE(backward_weight, DType::bf16)->Apply(shapes);

}  // namespace
}  // namespace keel::ops
