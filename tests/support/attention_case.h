// One attention problem in two forms: the reference's doubles and tensors of the shipped op, q, k, v, dq and dv
// strided.
#pragma once

#include <omp.h>

#include "framework/ops/attention/attention.h"
#include "tests/support/compare.h"
#include "tests/support/reference/attention.h"

namespace keel::testing {

struct AttentionCase {
  reference::Attention x;
  DType dtype = DType::f32;
  Values d_out;

  // Random contents, rounded to the element type so that both sides see the same numbers.
  void fill(uint64_t seed, double deviation = 1) {
    const auto values = [&](int64_t count, uint64_t stream) {
      return to_doubles(tensor_of({count}, dtype, random_values(count, seed * 16 + stream, deviation)));
    };
    x.q = values(x.B * x.T_q * x.H * x.d, 1);
    x.k = values(x.B * x.T_k * x.G * x.d, 2);
    x.v = values(x.B * x.T_k * x.G * x.d, 3);
    d_out = values(x.B * x.T_q * x.H * x.d, 4);
    x.scale.clear();
    for (int64_t h = 0; h < x.H; ++h)
      x.scale.push_back(float((h % 3 == 2 ? -1 : 1) * (0.5 + uniform(seed, uint64_t(h))) / std::sqrt(double(x.d))));
  }
};

struct AttentionRun {
  DeviceTensor out, log_sum_exp, largest_logit, entropy, place, dq, dk, dv, d_scale;
};

constexpr int64_t kFirstSequence = 3;  // of run_attention's places

inline ops::LogitPlace place_of(const AttentionRun& run, int64_t head) {
  return ops::LogitPlace::of(host_values<int64_t>(run.place)[size_t(head)]);
}

// A view [B, T, heads, d] in the middle of wider rows, whose other columns hold NaN.
struct StridedTensor {
  DeviceTensor whole;
  Tensor view;

  StridedTensor(int64_t B, int64_t T, int64_t heads, int64_t d, DType dtype) : whole({B, T, heads + 2, d}, dtype) {
    set_values(whole, Values(size_t(whole.tensor.elements()), std::nan("")));
    view = whole.tensor.slice(2, 1, 1 + heads);
  }
  StridedTensor(int64_t B, int64_t T, int64_t heads, int64_t d, DType dtype, const Values& values)
      : StridedTensor(B, T, heads, d, dtype) {
    set_values(view, values);
  }
  bool margins_untouched() const {
    for (int64_t edge : {int64_t(0), whole.tensor.size(2) - 1})
      for (double value : to_doubles(whole.tensor.slice(2, edge, edge + 1)))
        if (!std::isnan(value)) return false;
    return true;
  }
};

inline DeviceTensor copy_of(const ConstTensor& tensor) {
  return tensor_of(tensor.shape(), tensor.dtype(), to_doubles(tensor));
}

// Forward and backward of the shipped op.
inline AttentionRun run_attention(const AttentionCase& problem, int threads = 2) {
  const reference::Attention& x = problem.x;
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(threads);
  const StridedTensor q(x.B, x.T_q, x.H, x.d, problem.dtype, x.q), k(x.B, x.T_k, x.G, x.d, problem.dtype, x.k);
  const StridedTensor v(x.B, x.T_k, x.G, x.d, problem.dtype, x.v), dq(x.B, x.T_q, x.H, x.d, problem.dtype);
  const StridedTensor dv(x.B, x.T_k, x.G, x.d, problem.dtype);
  const DeviceTensor scale = tensor_of({x.H}, DType::f32, x.scale);
  const DeviceTensor d_out = tensor_of({x.B, x.T_q, x.H, x.d}, problem.dtype, problem.d_out);
  DeviceTensor first_key;
  if (!x.first_key.empty()) {
    const std::vector<int32_t> starts(x.first_key.begin(), x.first_key.end());
    first_key = DeviceTensor({x.B, x.T_q}, DType::i32);
    copy(first_key, ConstTensor(starts.data(), {x.B, x.T_q}, DType::i32));
  }
  const ops::AttentionInputs inputs = {q.view, k.view, v.view, scale, first_key};
  const ops::AttentionOptions options = {x.causal, x.q_offset, x.window, float(x.softcap), kFirstSequence};

  AttentionRun run;
  run.out = DeviceTensor(q.view.shape(), problem.dtype);
  run.dk = DeviceTensor(k.view.shape(), problem.dtype);
  run.log_sum_exp = DeviceTensor({x.B, x.H, x.T_q}, DType::f32);
  for (DeviceTensor* sums : {&run.largest_logit, &run.entropy, &run.d_scale}) *sums = DeviceTensor({x.H}, DType::f32);
  run.place = DeviceTensor({x.H}, DType::i64);
  const ops::AttentionOutputs outputs = {run.out, run.log_sum_exp, run.largest_logit, run.entropy, run.place};
  ops::attention_forward(outputs, inputs, options);
  ops::attention_backward({dq.view, run.dk, dv.view, run.d_scale}, d_out, outputs, inputs, options);
  EXPECT_TRUE(dq.margins_untouched() && dv.margins_untouched());
  run.dq = copy_of(dq.view);
  run.dv = copy_of(dv.view);
  omp_set_num_threads(threads_before);
  return run;
}

}  // namespace keel::testing
