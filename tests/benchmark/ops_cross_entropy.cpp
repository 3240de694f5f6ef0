// Cross-entropy of one chunk of tokens: share of a copy's memory rate. Bytes counted: logits read for the statistics
// (written too with a soft-cap), read and written for the gradient.
#include <vector>

#include "framework/ops/cross_entropy.h"
#include "tests/benchmark/memory_rate.h"

namespace keel {
namespace {

constexpr int64_t kRows = 256, kColumns = 50304;

struct Chunk {
  explicit Chunk(DType dtype)
      : logits({kRows, kColumns}, dtype),
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

void statistics(benchmark::State& state, DType dtype, float softcap) {
  Chunk chunk(dtype);
  chunk.options.softcap = softcap;
  benchmarking::measure(state, chunk.logits.tensor.size_bytes() * (softcap > 0 ? 2 : 1), [&] {
    ops::cross_entropy_statistics(chunk.statistics(), chunk.logits, chunk.wanted(), chunk.options);
  });
}

void gradient(benchmark::State& state, DType dtype) {
  Chunk chunk(dtype);
  float factor = 1e-3f;
  ops::cross_entropy_statistics(chunk.statistics(), chunk.logits, chunk.wanted(), chunk.options);
  benchmarking::measure(state, chunk.logits.tensor.size_bytes() * 2, [&] {
    ops::cross_entropy_gradient(chunk.logits, chunk.statistics(), chunk.wanted(), Tensor(&factor, {1}, DType::f32),
                                chunk.options);
  });
}

BENCHMARK_CAPTURE(statistics, fp32, DType::f32, 0.f)->UseManualTime();
BENCHMARK_CAPTURE(statistics, fp32_softcap, DType::f32, 30.f)->UseManualTime();
BENCHMARK_CAPTURE(statistics, bf16, DType::bf16, 0.f)->UseManualTime();
BENCHMARK_CAPTURE(gradient, fp32, DType::f32)->UseManualTime();
BENCHMARK_CAPTURE(gradient, bf16, DType::bf16)->UseManualTime();

}  // namespace
}  // namespace keel
