// Passes over memory as shares of the rate at which this machine copies memory, measured in the same run with the same
// threads. Bytes are those that must be read and written.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "framework/ops/elementwise.h"
#include "framework/ops/embedding.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/ops/support/threads.h"
#include "framework/ops/update/adamw.h"
#include "framework/tensor/buffer.h"

namespace keel::ops {
namespace {

constexpr int64_t kElements = int64_t(1) << 24;

// The machine is shared, so the best repetition counts.
template <class F>
double best_seconds(int repetitions, const F& f) {
  double best = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

double copied_bytes_per_second() {
  static const double rate = [] {
    OwnedTensor from({kElements}, DType::f32), to({kElements}, DType::f32);
    fill(from, 1);
    fill(to, 2);
    auto copy = [&] {
      for_parts(kElements * 4, omp_get_max_threads(), [&](int, int64_t begin, int64_t end) {
        std::memcpy(to.buffer.data() + begin, from.buffer.data() + begin, size_t(end - begin));
      });
    };
    return 2.0 * 4 * kElements / best_seconds(20, copy);
  }();
  return rate;
}

template <class F>
void measure(benchmark::State& state, double bytes, const F& f) {
  double best = 1e30;
  for (auto _ : state) {
    double seconds = best_seconds(1, f);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["of_memcpy"] = bytes / best / copied_bytes_per_second();
}

OwnedTensor filled(const Shape& shape, DType dtype) {
  OwnedTensor tensor(shape, dtype);
  fill(tensor, 0.5f);
  return tensor;
}

void narrow(benchmark::State& state) {
  OwnedTensor x = filled({kElements}, DType::f32), y = filled({kElements}, DType::bf16);
  measure(state, 6.0 * kElements, [&] { convert(y, x); });
}
void widen(benchmark::State& state) {
  OwnedTensor x = filled({kElements}, DType::bf16), y = filled({kElements}, DType::f32);
  measure(state, 6.0 * kElements, [&] { convert(y, x); });
}
void add_fp32(benchmark::State& state) {
  OwnedTensor a = filled({kElements}, DType::f32), b = filled({kElements}, DType::f32);
  OwnedTensor y = filled({kElements}, DType::f32);
  measure(state, 12.0 * kElements, [&] { add(y, a, b); });
}
void squares(benchmark::State& state) {
  OwnedTensor x = filled({kElements}, DType::f32);
  OwnedTensor total({1}, DType::f64);
  measure(state, 4.0 * kElements, [&] { add_sum_of_squares(total, x); });
}
void bias_gradient(benchmark::State& state) {
  OwnedTensor dy = filled({kElements / 1024, 1024}, DType::bf16), db({1024}, DType::f32);
  measure(state, 2.0 * kElements, [&] { linear_backward_bias(db, dy); });
}
void adamw_with_copy(benchmark::State& state) {
  OwnedTensor w = filled({kElements}, DType::f32), m = filled({kElements}, DType::f32);
  OwnedTensor v = filled({kElements}, DType::f32), c = filled({kElements}, DType::bf16);
  OwnedTensor g = filled({kElements}, DType::f32);
  OwnedTensor change({1}, DType::f64), rates({3}, DType::f32), gate({2}, DType::f32);
  std::ranges::copy(adamw_rates({.lr = 1e-6}, {}), rates.tensor.as<float>());
  std::fill_n(gate.tensor.as<float>(), 2, 1.f);
  measure(state, 30.0 * kElements, [&] { adamw(change, {w, m, v, c}, g, {rates, gate, true}, {}); });
}

constexpr int64_t kTokens = 16384, kWidth = 512, kVocabulary = 32000;

std::vector<int32_t> ids() {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) ids.push_back(int32_t(i * i % kVocabulary));
  return ids;
}
void lookup(benchmark::State& state) {
  OwnedTensor table = filled({kVocabulary, kWidth}, DType::bf16), y = filled({kTokens, kWidth}, DType::bf16);
  std::vector<int32_t> tokens = ids();
  ConstTensor id(tokens.data(), {kTokens}, DType::i32);
  measure(state, 4.0 * kTokens * kWidth, [&] { embedding_forward(y, table, id, 0, 1); });
}
void lookup_gradient(benchmark::State& state) {
  OwnedTensor d_table = filled({kVocabulary, kWidth}, DType::f32), dy = filled({kTokens, kWidth}, DType::bf16);
  std::vector<int32_t> tokens = ids();
  ConstTensor id(tokens.data(), {kTokens}, DType::i32);
  measure(state, 10.0 * kTokens * kWidth, [&] { embedding_backward(d_table, dy, id, 0, 1); });
}

BENCHMARK(narrow)->UseManualTime();
BENCHMARK(widen)->UseManualTime();
BENCHMARK(add_fp32)->UseManualTime();
BENCHMARK(squares)->UseManualTime();
BENCHMARK(bias_gradient)->UseManualTime();
BENCHMARK(adamw_with_copy)->UseManualTime();
BENCHMARK(lookup)->UseManualTime();
BENCHMARK(lookup_gradient)->UseManualTime();

}  // namespace
}  // namespace keel::ops
