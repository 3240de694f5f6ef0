// Cross-entropy of one chunk of tokens: share of a copy's memory rate. Bytes counted: logits read for the statistics
// (written too with a soft-cap), read for the gradient, and that written.
#include <vector>

#include "framework/ops/cross_entropy.h"
#include "tests/benchmark/memory_rate.h"

namespace keel {
namespace {

constexpr int64_t kRows = 256, kColumns = 50304;

struct Chunk {
  Chunk()
      : logits({kRows, kColumns}, DType::f32),
        maximum({kRows}, DType::f32),
        sum_exp({kRows}, DType::f32),
        target_logit({kRows}, DType::f32),
        logit_sum({kRows}, DType::f32),
        targets(kRows, 7) {}
  ops::CrossEntropyStatistics statistics() const { return {maximum, sum_exp, target_logit, logit_sum}; }
  ConstTensor wanted() const { return ConstTensor(targets.data(), {kRows}, DType::i32); }

  OwnedTensor logits, maximum, sum_exp, target_logit, logit_sum;
  std::vector<int32_t> targets;
  ops::CrossEntropyOptions options{50257, 0, 0, 0, 1e-4f};
};

void statistics(benchmark::State& state, float softcap) {
  Chunk chunk;
  chunk.options.softcap = softcap;
  benchmarking::measure(state, chunk.logits.tensor.size_bytes() * (softcap > 0 ? 2 : 1), [&] {
    ops::cross_entropy_statistics(chunk.statistics(), chunk.logits, chunk.wanted(), chunk.options);
  });
}

void gradient(benchmark::State& state, DType dtype) {
  Chunk chunk;
  const OwnedTensor rounded({kRows, kColumns}, DType::bf16);
  const Tensor d_logits = dtype == DType::f32 ? chunk.logits.tensor : rounded.tensor;
  float factor = 1e-3f;
  ops::cross_entropy_statistics(chunk.statistics(), chunk.logits, chunk.wanted(), chunk.options);
  benchmarking::measure(state, chunk.logits.tensor.size_bytes() + d_logits.size_bytes(), [&] {
    ops::cross_entropy_gradient(
        d_logits, {chunk.logits, chunk.statistics(), chunk.wanted(), Tensor(&factor, {1}, DType::f32), chunk.options});
  });
}

BENCHMARK_CAPTURE(statistics, plain, 0.f)->UseManualTime();
BENCHMARK_CAPTURE(statistics, softcap, 30.f)->UseManualTime();
BENCHMARK_CAPTURE(gradient, fp32, DType::f32)->UseManualTime();
BENCHMARK_CAPTURE(gradient, bf16, DType::bf16)->UseManualTime();

}  // namespace
}  // namespace keel
