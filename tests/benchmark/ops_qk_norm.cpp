// QK-Norm and RoPE: share of a copy's memory rate. Bytes counted: each activation once in, once out.
#include <vector>

#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "tests/benchmark/memory_rate.h"

namespace keel {
namespace {

constexpr int64_t kTokens = 8192, kHeads = 16, kKvHeads = 4;

struct Pass {
  Pass(DType dtype, ops::QkNormKind kind, int64_t d)
      : qkv({kTokens, (kHeads + 2 * kKvHeads) * d}, dtype),
        d_qkv(qkv.tensor.shape(), dtype),
        q({kTokens, kHeads, d}, dtype),
        k({kTokens, kKvHeads, d}, dtype),
        q_weight({kHeads, d}, DType::f32),
        k_weight({kKvHeads, d}, DType::f32),
        dq_weight({kHeads, d}, DType::f32),
        dk_weight({kKvHeads, d}, DType::f32),
        rope({kTokens, d}, DType::f32),
        positions(kTokens) {
    for (int64_t t = 0; t < kTokens; ++t) positions[size_t(t)] = int32_t(t % 2048);
    ops::rope_table(rope, 1e4);
    options.heads = kHeads;
    options.kv_heads = kKvHeads;
    options.head_dim = options.rotated = d;
    options.kind = kind;
  }
  ops::QkNormRopeInputs inputs() const {
    bool normed = options.kind != ops::QkNormKind::none;
    return {qkv, normed ? q_weight.tensor : Tensor(), normed ? k_weight.tensor : Tensor(), rope,
            ConstTensor(positions.data(), {kTokens}, DType::i32)};
  }
  int64_t bytes() const { return q.tensor.size_bytes() + k.tensor.size_bytes(); }

  OwnedTensor qkv, d_qkv, q, k, q_weight, k_weight, dq_weight, dk_weight, rope;
  std::vector<int32_t> positions;
  ops::QkNormRopeOptions options;
};

void forward(benchmark::State& state, DType dtype, ops::QkNormKind kind, int64_t d) {
  Pass pass(dtype, kind, d);
  benchmarking::measure(state, 2 * pass.bytes(),
                        [&] { ops::qk_norm_rope_forward(pass.q, pass.k, pass.inputs(), {}, pass.options); });
}

void backward(benchmark::State& state, DType dtype, ops::QkNormKind kind, int64_t d) {
  Pass pass(dtype, kind, d);
  bool normed = kind != ops::QkNormKind::none;
  ops::QkNormRopeGradients gradients{pass.d_qkv, normed ? pass.dq_weight.tensor : Tensor(),
                                     normed ? pass.dk_weight.tensor : Tensor()};
  benchmarking::measure(state, 3 * pass.bytes(), [&] {
    ops::qk_norm_rope_backward(gradients, {pass.q, pass.k, pass.inputs(), {}, pass.options}, {});
  });
}

BENCHMARK_CAPTURE(forward, none_fp32_d128, DType::f32, ops::QkNormKind::none, 128)->UseManualTime();
BENCHMARK_CAPTURE(forward, rms_fp32_d128, DType::f32, ops::QkNormKind::rms, 128)->UseManualTime();
BENCHMARK_CAPTURE(forward, rms_bf16_d128, DType::bf16, ops::QkNormKind::rms, 128)->UseManualTime();
BENCHMARK_CAPTURE(forward, rms_bf16_d64, DType::bf16, ops::QkNormKind::rms, 64)->UseManualTime();
BENCHMARK_CAPTURE(forward, layer_bf16_d128, DType::bf16, ops::QkNormKind::layer, 128)->UseManualTime();
BENCHMARK_CAPTURE(backward, none_fp32_d128, DType::f32, ops::QkNormKind::none, 128)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_fp32_d128, DType::f32, ops::QkNormKind::rms, 128)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_bf16_d128, DType::bf16, ops::QkNormKind::rms, 128)->UseManualTime();
BENCHMARK_CAPTURE(backward, rms_bf16_d64, DType::bf16, ops::QkNormKind::rms, 64)->UseManualTime();
BENCHMARK_CAPTURE(backward, layer_bf16_d128, DType::bf16, ops::QkNormKind::layer, 128)->UseManualTime();

}  // namespace
}  // namespace keel
