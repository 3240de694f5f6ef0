#include "launch/bench/gpu_passes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/base/clock.h"
#include "framework/base/rng.h"
#include "framework/ops/activation.h"
#include "framework/ops/attention/attention.h"
#include "framework/ops/cross_entropy.h"
#include "framework/ops/elementwise.h"
#include "framework/ops/embedding.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/ops/matmul/normal_values.h"
#include "framework/ops/norm.h"
#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "framework/ops/update/adamw.h"
#include "framework/tensor/copy.h"

namespace keel {
namespace {

class Timer {
 public:
  Timer(Device device, bool small, std::function<void(const PassTime&)> done)
      : device_(device), runs_(small ? 1 : 20), done_(std::move(done)) {}

  // The mean of several runs without a wait between them, after one that warms up. A target is set for full sizes.
  template <class F>
  void time(PassTime pass, const F& run) const {
    if (runs_ == 1) pass.target_seconds = 0;
    try {
      run();
      const Stream& stream = Stream::current(device_);
      stream.synchronize();
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < runs_; ++i) run();
      stream.synchronize();
      pass.seconds = seconds_since(begin) / runs_;
    } catch (const std::exception& error) {
      pass.error = error.what();
    }
    done_(pass);
  }

 private:
  Device device_;
  int runs_;
  std::function<void(const PassTime&)> done_;
};

OwnedTensor filled(const Shape& shape, DType dtype, float value, Device device) {
  OwnedTensor tensor(shape, dtype, device);
  ops::fill(tensor, value);
  return tensor;
}

OwnedTensor of_ids(const std::vector<int32_t>& ids, const Shape& shape, Device device) {
  OwnedTensor tensor(shape, DType::i32, device);
  copy(tensor, ConstTensor(ids.data(), shape, DType::i32));
  return tensor;
}

// T tokens, H query and G key/value heads of d.
struct Sizes {
  int64_t T, H, G, d;
};

// `shared`: all heads of a side have one gain, as in Qwen3.
void time_qk_norm(const Timer& timer, Device device, const Sizes& sizes, bool shared) {
  const auto [T, H, G, d] = sizes;
  auto half = [&](const Shape& shape) { return filled(shape, DType::bf16, 0.5f, device); };
  const OwnedTensor qkv = half({T, (H + 2 * G) * d}), d_qkv = half({T, (H + 2 * G) * d}), q = half({T, H, d}),
                    k = half({T, G, d});
  ops::fill_normal(qkv, 1);
  const Shape of_q = shared ? Shape{d} : Shape{H, d}, of_k = shared ? Shape{d} : Shape{G, d};
  const OwnedTensor gain_q = filled(of_q, DType::f32, 1, device), gain_k = filled(of_k, DType::f32, 1, device);
  const OwnedTensor d_gain_q(of_q, DType::f32, device), d_gain_k(of_k, DType::f32, device);
  std::vector<int32_t> places;
  for (int64_t t = 0; t < T; ++t) places.push_back(int32_t(t));
  const OwnedTensor rope({T, d}, DType::f32, device), positions = of_ids(places, {T}, device);
  ops::rope_table(rope, 10000);
  const ops::QkNormRopeOptions options{.heads = H, .kv_heads = G, .head_dim = d, .rotated = d};
  const ops::QkNormRopeInputs in{qkv, gain_q, gain_k, rope, positions};
  const double elements = double(T * (H + G) * d);
  const std::string name = shared ? "qk_norm_rope of shared gains" : "qk_norm_rope";
  timer.time({.name = name + " forward", .bytes = 4 * elements, .target_seconds = 52e-6},
             [&] { ops::qk_norm_rope_forward(q, k, in, {}, options); });
  timer.time({.name = name + " backward", .bytes = 6 * elements, .target_seconds = 87e-6}, [&] {
    ops::qk_norm_rope_backward({d_qkv, d_gain_q, d_gain_k}, {q, k, in, {}, options}, {});
  });
}

// Causal: half of the T x T products. Backward recomputes the logits: five products against two. With documents of T /
// 8 tokens an eighth of that is left.
void time_attention(const Timer& timer, Device device, const Sizes& sizes) {
  const auto [T, H, G, d] = sizes;
  auto some = [&](int64_t heads) { return OwnedTensor({1, T, heads, d}, DType::bf16, device); };
  const OwnedTensor q = some(H), k = some(G), v = some(G), out = some(H), d_out = some(H), dq = some(H), dk = some(G),
                    dv = some(G);
  ops::fill_normal(q, 1);
  ops::fill_normal(k, 2);
  ops::fill_normal(v, 3);
  ops::fill_normal(d_out, 4);
  const OwnedTensor scale = filled({H}, DType::f32, 0.1f, device), log_sum_exp({1, H, T}, DType::f32, device),
                    largest({H}, DType::f32, device);
  std::vector<int32_t> starts;
  for (int64_t t = 0; t < T; ++t) starts.push_back(int32_t(t / (T / 8) * (T / 8)));
  const OwnedTensor documents = of_ids(starts, {1, T}, device);
  const double bytes = 2.0 * double(T * d) * double(2 * H + 2 * G);
  auto time = [&](const std::string& name, ConstTensor first_key, double forward) {
    const ops::AttentionInputs in{.q = q, .k = k, .v = v, .scale = scale, .first_key = first_key};
    const double target = first_key.defined() ? 0 : forward / 335e12;
    timer.time({.name = name + " forward", .bytes = bytes, .operations = forward, .target_seconds = target}, [&] {
      ops::attention_forward({out, log_sum_exp, largest, {}}, in, {});
    });
    timer.time({.name = name + " backward", .bytes = 2 * bytes, .operations = 2.5 * forward}, [&] {
      ops::attention_backward({dq, dk, dv, {}}, d_out, {out, log_sum_exp, {}, {}}, in, {});
    });
  };
  const double forward = 2.0 * double(T) * double(T) * double(d * H);
  time("attention", {}, forward);
  time("attention of documents", documents, forward / 8);
}

void time_norm(const Timer& timer, Device device, int64_t T, int64_t D) {
  auto rows = [&] { return filled({T, D}, DType::bf16, 0.5f, device); };
  const OwnedTensor x = rows(), branch = rows(), sum = rows(), y = rows();
  const OwnedTensor weight = filled({D}, DType::f32, 1, device), inverse({T}, DType::f32, device);
  timer.time({.name = "residual + norm", .bytes = 8.0 * double(T * D)}, [&] {
    ops::norm_forward({y, sum, {inverse, {}}, x, branch, {weight, {}}});
  });
  const OwnedTensor d_weight({D}, DType::f32, device);
  timer.time({.name = "norm backward", .bytes = 8.0 * double(T * D)}, [&] {
    ops::norm_backward({sum, {d_weight, {}}, y, x, {inverse, {}}, {weight, {}}, {}, true});
  });
}

void time_activation(const Timer& timer, Device device, int64_t T, int64_t F) {
  auto rows = [&](int64_t columns) { return filled({T, columns}, DType::bf16, 0.5f, device); };
  const OwnedTensor x = rows(2 * F), dx = rows(2 * F), y = rows(F), dy = rows(F);
  const double elements = double(T * F);
  timer.time({.name = "swiglu forward", .bytes = 6 * elements},
             [&] { ops::activation_forward(y, x, ops::ActivationKind::swiglu); });
  timer.time({.name = "swiglu backward", .bytes = 12 * elements},
             [&] { ops::activation_backward(dx, y, dy, x, ops::ActivationKind::swiglu); });
}

void time_bias_sums(const Timer& timer, Device device, int64_t T, int64_t N) {
  const OwnedTensor dy = filled({T, N}, DType::bf16, 0.5f, device), d_bias({N}, DType::f32, device);
  timer.time({.name = "bias sums", .bytes = 2.0 * double(T * N)}, [&] { ops::linear_backward_bias(d_bias, dy); });
}

// Token frequencies of text: id i comes about as often as 1 / (i + 1), so that few rows of the table get most of dy.
void time_embedding(const Timer& timer, Device device, int64_t T, int64_t V, int64_t D) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < T; ++t) ids.push_back(int32_t(std::pow(double(V), uniform(1, uint64_t(t)))) - 1);
  const OwnedTensor places = of_ids(ids, {T}, device), d_table({V, D}, DType::f32, device);
  const OwnedTensor table = filled({V, D}, DType::bf16, 0.5f, device), y({T, D}, DType::bf16, device);
  std::sort(ids.begin(), ids.end());
  const auto rows = double(std::unique(ids.begin(), ids.end()) - ids.begin());
  timer.time({.name = "embedding forward", .bytes = 2 * (double(T) + rows) * double(D)},
             [&] { ops::embedding_forward(y, table, places, 0, 1); });
  timer.time({.name = "embedding backward", .bytes = (2 * double(T) + 8 * rows) * double(D)},
             [&] { ops::embedding_backward(d_table, y, places, 0, 1); });
}

void time_cross_entropy(const Timer& timer, Device device, int64_t rows, int64_t V) {
  const OwnedTensor logits = filled({rows, V}, DType::f32, 0.5f, device), targets({rows}, DType::i32, device);
  const OwnedTensor d_logits({rows, V}, DType::bf16, device);
  auto column = [&] { return OwnedTensor({rows}, DType::f32, device); };
  const OwnedTensor maximum = column(), sum = column(), target = column(), total = column();
  const OwnedTensor factor = filled({1}, DType::f32, 1e-3f, device);
  const ops::CrossEntropyStatistics statistics{maximum, sum, target, total};
  const ops::CrossEntropyOptions options{.vocabulary = V};
  const double bytes = 4.0 * double(rows * V);
  timer.time({.name = "cross-entropy statistics", .bytes = bytes},
             [&] { ops::cross_entropy_statistics(statistics, logits, targets, options); });
  timer.time({.name = "cross-entropy gradient", .bytes = 1.5 * bytes}, [&] {
    ops::cross_entropy_gradient(d_logits, {logits, statistics, targets, factor, options});
  });
}

void time_adamw(const Timer& timer, Device device, int64_t n) {
  auto floats = [&] { return filled({n}, DType::f32, 0.5f, device); };
  const OwnedTensor w = floats(), m = floats(), v = floats(), g = floats(), c({n}, DType::bf16, device);
  const OwnedTensor change({1}, DType::f64, device), rates = filled({3}, DType::f32, 1e-3f, device),
                                                     gate = filled({2}, DType::f32, 1, device);
  timer.time({.name = "adamw", .bytes = 30.0 * double(n)}, [&] {
    ops::adamw(change, {w, m, v, c}, g, {rates, gate, true}, {});
  });
}

void time_copy(const Timer& timer, Device device, int64_t n) {
  const OwnedTensor from({n}, DType::f32, device), to({n}, DType::f32, device);
  timer.time({.name = "copy", .bytes = 8.0 * double(n)}, [&] { copy(to, from); });
}

}  // namespace

std::vector<Passes> pass_groups(Device device, bool small, const std::function<void(const PassTime&)>& done) {
  const Timer timer(device, small, done);
  const int64_t T = small ? 64 : 8192, H = small ? 4 : 32, G = small ? 2 : 8, d = small ? 64 : 128;
  const int64_t V = small ? 300 : 50304;
  return {
      {"copy", [=] { time_copy(timer, device, small ? 4096 : int64_t(1) << 28); }},
      {"qk_norm_rope",
       [=] {
         for (bool shared : {false, true}) time_qk_norm(timer, device, {T, H, G, d}, shared);
       }},
      {"attention",
       [=] {
         time_attention(timer, device, {T, H, G, d});
       }},
      {"norm", [=] { time_norm(timer, device, T, H * d); }},
      {"activation", [=] { time_activation(timer, device, T, 2 * H * d); }},
      {"bias", [=] { time_bias_sums(timer, device, T, (H + 2 * G) * d); }},
      {"embedding", [=] { time_embedding(timer, device, T, V, H * d); }},
      {"cross-entropy", [=] { time_cross_entropy(timer, device, small ? 16 : 2048, V); }},
      {"adamw", [=] { time_adamw(timer, device, small ? 5000 : int64_t(1) << 28); }},
  };
}

}  // namespace keel
