// Bytes and operations of kernels, counted, against the least that a pass must read, write and multiply: a table, and a
// failure where a kernel does more. On the stand-in (tests/support/cuda_host/traffic.h says what is counted).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "framework/ops/activation.h"
#include "framework/ops/attention/attention.h"
#include "framework/ops/cross_entropy.h"
#include "framework/ops/elementwise.h"
#include "framework/ops/norm.h"
#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/ops/update/adamw.h"
#include "framework/ops/update/stochastic_rounding.h"
#include "tests/support/cuda_host/traffic.h"
#include "tests/support/device.h"

namespace keel::ops {
namespace {

using namespace keel::testing;

DeviceTensor filled(const Shape& shape, DType dtype, float value) {
  DeviceTensor tensor(shape, dtype);
  fill(tensor, value);
  return tensor;
}
DeviceTensor half(const Shape& shape) {
  return filled(shape, DType::bf16, 0.5f);
}
DeviceTensor floats(const Shape& shape) {
  return filled(shape, DType::f32, 0.5f);
}

// What a pass must read and write of one tensor, in bytes.
struct Least {
  const OwnedTensor& tensor;
  int64_t read, written;
};

// Each byte once: returns the sum over the tensors, of which `pass` may do no more than is listed.
template <class Pass>
int64_t bytes_of(const char* name, std::initializer_list<Least> tensors, const Pass& pass) {
  const Stream& stream = Stream::current(test_device());
  stream.synchronize();
  std::deque<cuda_host::CountedMemory> counts;
  for (const Least& least : tensors) counts.emplace_back(least.tensor.tensor.data(), least.tensor.buffer.size_bytes());
  pass();
  stream.synchronize();
  int64_t read = 0, written = 0, least_read = 0, least_written = 0;
  size_t i = 0;
  for (const Least& least : tensors) {
    EXPECT_EQ(counts[i].loaded_bytes(), least.read) << name << ": read of " << least.tensor.tensor.shape().text();
    EXPECT_EQ(counts[i].stored_bytes(), least.written) << name << ": written to " << least.tensor.tensor.shape().text();
    read += counts[i].loaded_bytes(), written += counts[i].stored_bytes();
    least_read += least.read, least_written += least.written;
    ++i;
  }
  fmt::print("{:28} read {:9} of {:9}  written {:9} of {:9}\n", name, read, least_read, written, least_written);
  return read + written;
}

TEST(KernelBytes, QkNormAndRope) {
  constexpr int64_t T = 256, H = 4, G = 2, d = 64, all = T * (H + G) * d;
  const DeviceTensor qkv = half({T, (H + 2 * G) * d}), d_qkv = half({T, (H + 2 * G) * d}), q = half({T, H, d}),
                     k = half({T, G, d}), gain_q = floats({H, d}), gain_k = floats({G, d}), d_gain_q = floats({H, d}),
                     d_gain_k = floats({G, d}), rope({T, d}, DType::f32), positions({T}, DType::i32);
  rope_table(rope, 10000);
  const QkNormRopeOptions options{.heads = H, .kv_heads = G, .head_dim = d, .rotated = d};
  const QkNormRopeInputs in{qkv, gain_q, gain_k, rope, positions};
  EXPECT_LE(bytes_of("qk_norm_rope forward", {{qkv, 2 * all, 0}, {q, 0, 2 * T * H * d}, {k, 0, 2 * T * G * d}},
                     [&] { qk_norm_rope_forward(q, k, in, {}, options); }),
            4 * all);
  EXPECT_LE(bytes_of("qk_norm_rope backward",
                     {{qkv, 2 * all, 0}, {q, 2 * T * H * d, 0}, {k, 2 * T * G * d, 0}, {d_qkv, 0, 2 * all}},
                     [&] {
                       qk_norm_rope_backward({d_qkv, d_gain_q, d_gain_k}, {q, k, in, {}, options}, {});
                     }),
            6 * all);
}

TEST(KernelBytes, ResidualAndNorm) {
  constexpr int64_t T = 64, D = 512, n = T * D;
  const DeviceTensor x = half({T, D}), branch = half({T, D}), sum = half({T, D}), y = half({T, D}), dx = half({T, D}),
                     weight = floats({D}), d_weight = floats({D}), inverse = floats({T});
  bytes_of("residual + norm", {{x, 2 * n, 0}, {branch, 2 * n, 0}, {sum, 0, 2 * n}, {y, 0, 2 * n}, {inverse, 0, 4 * T}},
           [&] {
             norm_forward({y, sum, {inverse, {}}, x, branch, {weight, {}}});
           });
  bytes_of("norm", {{x, 2 * n, 0}, {y, 0, 2 * n}}, [&] {
    norm_forward({.y = y, .statistics = {inverse, {}}, .x = x, .weights = {weight, {}}});
  });
  bytes_of("norm backward, residual", {{y, 2 * n, 0}, {x, 2 * n, 0}, {dx, 2 * n, 2 * n}}, [&] {
    norm_backward({dx, {d_weight, {}}, y, x, {inverse, {}}, {weight, {}}, {}, true});
  });
}

TEST(KernelBytes, Activations) {
  constexpr int64_t T = 64, F = 256, n = T * F;
  const DeviceTensor x = half({T, 2 * F}), dx = half({T, 2 * F}), y = half({T, F}), dy = half({T, F});
  bytes_of("swiglu", {{x, 4 * n, 0}, {y, 0, 2 * n}}, [&] { activation_forward(y, x, ActivationKind::swiglu); });
  bytes_of("swiglu backward", {{x, 4 * n, 0}, {dy, 2 * n, 0}, {dx, 0, 4 * n}, {y, 0, 2 * n}},
           [&] { activation_backward(dx, y, dy, x, ActivationKind::swiglu); });
}

TEST(KernelBytes, CrossEntropy) {
  constexpr int64_t rows = 16, V = 2048, n = rows * V;
  const DeviceTensor logits = floats({rows, V}), targets({rows}, DType::i32), maximum = floats({rows}),
                     sum = floats({rows}), target = floats({rows}), total = floats({rows}), factor = floats({1}),
                     gradient = half({rows, V});
  const CrossEntropyStatistics statistics{maximum, sum, target, total};
  const CrossEntropyOptions options{.vocabulary = V};
  // The logits of targets are read once more.
  bytes_of("cross-entropy statistics", {{logits, 4 * n + 4 * rows, 0}},
           [&] { cross_entropy_statistics(statistics, logits, targets, options); });
  bytes_of("cross-entropy gradient", {{logits, 4 * n + 4 * rows, 0}, {gradient, 0, 2 * n}}, [&] {
    cross_entropy_gradient(gradient, {logits, statistics, targets, factor, options});
  });
}

TEST(KernelBytes, UpdateOfTheWeights) {
  constexpr int64_t n = 1 << 15;
  const DeviceTensor w = floats({n}), m = floats({n}), v = floats({n}), g = floats({n}), copies = half({n}),
                     change({1}, DType::f64), rates = filled({3}, DType::f32, 1e-3f), gate = filled({2}, DType::f32, 1),
                     updates({1}, DType::i64);
  EXPECT_LE(
      bytes_of("adamw", {{w, 4 * n, 4 * n}, {m, 4 * n, 4 * n}, {v, 4 * n, 4 * n}, {g, 4 * n, 0}, {copies, 0, 2 * n}},
               [&] {
                 adamw(change, {w, m, v, copies}, g, {rates, gate, true}, {});
               }),
      30 * n);
  bytes_of("round_stochastically", {{w, 4 * n, 0}, {copies, 0, 2 * n}}, [&] {
    round_stochastically(copies, w, {.key = 1, .updates = updates, .gate = gate, .run = n, .stride = n, .offset = 0});
  });
  bytes_of("sum of squares", {{g, 4 * n, 0}}, [&] { add_sum_of_squares(change, g); });
}

TEST(KernelBytes, Elementwise) {
  constexpr int64_t n = 1 << 15;
  const DeviceTensor a = half({n}), b = half({n}), y = half({n}), wide = floats({n});
  bytes_of("add", {{a, 2 * n, 0}, {b, 2 * n, 0}, {y, 0, 2 * n}}, [&] { add(y, a, b); });
  bytes_of("convert", {{wide, 4 * n, 0}, {y, 0, 2 * n}}, [&] { convert(y, wide); });
  bytes_of("scale", {{y, 2 * n, 2 * n}}, [&] { scale(y, 0.5f); });
  bytes_of("fill", {{y, 0, 2 * n}}, [&] { fill(y, 0.5f); });
}

// By tensor cores: 2 d operations for each product of a query and a key, forward two of them and backward seven (five,
// and two of them once more by the kernel that owns the keys). A causal pass needs T (T + 1) / 2 pairs; whole tiles of
// 128 own rows by those that they meet are allowed.
TEST(KernelOperations, Attention) {
  constexpr int64_t T = 512, H = 2, G = 1, d = 64, block = 128;
  const auto some = [&](int64_t heads) { return half({1, T, heads, d}); };
  const DeviceTensor q = some(H), k = some(G), v = some(G), out = some(H), d_out = some(H), dq = some(H), dk = some(G),
                     dv = some(G), scale = filled({H}, DType::f32, 0.1f), log_sum_exp = floats({1, H, T}),
                     largest = floats({H});
  const AttentionInputs in{.q = q, .k = k, .v = v, .scale = scale, .first_key = {}};
  const int64_t pairs = H * T * (T + 1) / 2, tiles = H * (T / block) * (T / block + 1) / 2 * block * block;
  const auto check = [&](const char* name, int64_t products, auto pass) {
    const int64_t before = cuda_host::matrix_products();
    pass();
    Stream::current(test_device()).synchronize();
    const int64_t operations = (cuda_host::matrix_products() - before) * 2 * 16 * 8 * 16;
    fmt::print("{:28} operations {} of {}\n", name, operations, products * 2 * d * pairs);
    EXPECT_GE(operations, products * 2 * d * pairs) << name;
    EXPECT_LE(operations, products * 2 * d * tiles) << name;
  };
  check("attention forward", 2, [&] { attention_forward({out, log_sum_exp, largest, {}}, in, {}); });
  check("attention backward", 7, [&] {
    attention_backward({dq, dk, dv, {}}, d_out, {out, log_sum_exp, {}, {}}, in, {});
  });
}

}  // namespace
}  // namespace keel::ops
