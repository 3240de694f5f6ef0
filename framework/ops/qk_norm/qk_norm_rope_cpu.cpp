#include "framework/ops/qk_norm/qk_norm_rope_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/ops/qk_norm/qk_norm_rope_simd.h"
#include "framework/ops/support/partial_sums.h"
#include "framework/ops/support/threads.h"

namespace keel::ops::cpu {
namespace {

template <class Address>
Address advanced(Address data, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Address>>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + elements * bytes_of(dtype);
}

QkSide side_of(const QkNormRopeInputs& inputs, const QkNormRopeOptions& options, bool k) {
  ConstTensor weight = k ? inputs.k_weight : inputs.q_weight;
  QkSide side;
  side.heads = k ? options.kv_heads : options.heads;
  side.x = advanced(inputs.qkv.data(), k ? options.heads * options.head_dim : 0, inputs.qkv.dtype());
  side.x_stride = inputs.qkv.stride(0);
  side.gain_stride = weight.defined() && weight.dims() == 2 ? options.head_dim : 0;
  bool full = options.full();
  side.width = float(!full ? options.head_dim : k ? options.full_width_k : options.full_width_q);
  side.replicas = full && k ? float(options.kv_replicas) : 1;
  return side;
}

QkPass pass_of(const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  QkPass pass;
  pass.dtype = inputs.qkv.dtype();
  pass.kind = options.kind;
  pass.full = options.full();
  pass.after_rope = options.after_rope;
  pass.cast_before_weight = options.cast_before_weight;
  pass.eps = options.eps;
  pass.d = options.head_dim;
  pass.half = options.rotated / 2;
  pass.columns = options.statistic_columns();
  if (options.rotated > 0) {
    pass.rope = inputs.rope.as<float>();
    pass.positions = inputs.positions.as<int32_t>();
  }
  for (int side = 0; side < 2; ++side) pass.sides[side] = side_of(inputs, options, side == 1);
  return pass;
}

// Scratch that the calling thread keeps, grown at first use. In bytes, at most 4 (H + G) d for the gains; for each
// thread of the loop 8 H d for rows, 16 H for normalizers and, backward, 12 (H + G) d for sums.
struct Memory {
  std::vector<float> gains;
  std::vector<float> rows;
  std::vector<Normalizer> normalizers;
  std::vector<double> squares;
  PartialSums::Memory d_gains;
};

Memory& memory_of_thread() {
  static thread_local Memory memory;
  return memory;
}

size_t gain_elements(ConstTensor weight, int64_t d) {
  return size_t(weight.defined() ? weight.elements() : d);
}

// Effective gains in fp32: 1 + a small weight keeps the weight's digits.
void set_gains(QkPass& pass, const QkNormRopeInputs& inputs, bool zero_centered, Memory& memory) {
  const ConstTensor weights[] = {inputs.q_weight, inputs.k_weight};
  size_t total = gain_elements(weights[0], pass.d) + gain_elements(weights[1], pass.d);
  float* gain = grown(memory.gains, total);
  for (int side = 0; side < 2; ++side) {
    const ConstTensor& weight = weights[side];
    size_t elements = gain_elements(weight, pass.d);
    pass.sides[side].gain = gain;
    if (!weight.defined()) std::fill_n(gain, elements, 1.f);
    if (weight.defined())
      std::transform(weight.as<float>(), weight.as<float>() + elements, gain,
                     [&](float w) { return zero_centered ? 1 + w : w; });
    gain += elements;
  }
}

// Whole cache lines, so that threads do not share them.
int64_t padded(int64_t elements) {
  return (elements + 15) / 16 * 16;
}

// Runs f(part, tokens, scratch) over the tokens of a pass, on several threads.
template <class F>
void for_tokens(const QkPass& pass, int64_t tokens, int parts, const F& f) {
  Memory& memory = memory_of_thread();
  const int64_t heads = padded(std::max(pass.sides[0].heads, pass.sides[1].heads)), row = padded(heads * pass.d);
  float* rows = grown(memory.rows, size_t(2 * row * parts));
  Normalizer* normalizers = grown(memory.normalizers, size_t(heads * parts));
  for_parts(tokens, parts, [&](int part, int64_t begin, int64_t end) {
    float* x = rows + 2 * row * part;
    f(part, TokenRange{begin, end}, QkScratch{x, x + row, normalizers + heads * part, {}, {}});
  });
}

// A thread is worth 16k elements.
int parts_for(const QkPass& pass, int64_t tokens) {
  return parts_of(tokens, 16384 / ((pass.sides[0].heads + pass.sides[1].heads) * pass.d));
}

void set_full(QkPass& pass, ConstTensor statistics, ConstTensor sums) {
  if (!pass.full) return;
  pass.statistics = statistics.defined() ? statistics.as<float>() : nullptr;
  pass.sums = sums.defined() ? sums.as<float>() : nullptr;
}

QkPass backward_pass_of(const QkNormRopeBackward& call, ConstTensor sums) {
  QkPass pass = pass_of(call.inputs, call.options);
  set_gains(pass, call.inputs, call.options.zero_centered, memory_of_thread());
  set_full(pass, call.statistics, sums);
  pass.sides[0].dy = call.dq_out.data();
  pass.sides[1].dy = call.dk_out.data();
  return pass;
}

}  // namespace

void qk_norm_partial_statistics(Tensor statistics, const QkNormRopeInputs& inputs, const QkNormRopeOptions& options) {
  QkPass pass = pass_of(inputs, options);
  int64_t tokens = inputs.qkv.size(0);
  for_tokens(pass, tokens, parts_for(pass, tokens), [&](int, TokenRange range, const QkScratch& scratch) {
    qk_statistics_tokens(statistics.as<float>(), pass, range, scratch);
  });
}

void qk_norm_merge_statistics(Tensor merged, ConstTensor gathered, const QkNormRopeOptions& options) {
  const int64_t ranks = gathered.size(0), tokens = gathered.size(1);
  const double replicas[] = {1, double(options.kv_replicas)};
  const double widths[] = {double(options.heads * options.head_dim), double(options.kv_heads * options.head_dim)};
  for (int64_t token = 0; token < tokens; ++token) {
    for (int side = 0; side < 2; ++side) {
      Moments all;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const float* own = gathered.as<float>() + (rank * tokens + token) * 4 + 2 * side;
        all = merge(all, {widths[side] / replicas[side], double(own[0]), double(own[1]) / replicas[side]});
      }
      merged.as<float>()[token * 4 + 2 * side] = float(all.mean);
      merged.as<float>()[token * 4 + 2 * side + 1] = float(all.second);
    }
  }
}

void qk_norm_rope_forward(Tensor q_out, Tensor k_out, const QkNormRopeInputs& inputs, ConstTensor statistics,
                          const QkNormRopeOptions& options) {
  QkPass pass = pass_of(inputs, options);
  set_gains(pass, inputs, options.zero_centered, memory_of_thread());
  set_full(pass, statistics, {});
  pass.sides[0].out = q_out.data();
  pass.sides[1].out = k_out.data();
  int64_t tokens = inputs.qkv.size(0);
  for_tokens(pass, tokens, parts_for(pass, tokens),
             [&](int, TokenRange range, const QkScratch& scratch) { qk_forward_tokens(pass, range, scratch); });
}

void qk_norm_backward_sums(Tensor sums, const QkNormRopeBackward& call) {
  const QkPass pass = backward_pass_of(call, {});
  const int64_t tokens = call.inputs.qkv.size(0);
  for_tokens(pass, tokens, parts_for(pass, tokens), [&](int, TokenRange range, const QkScratch& scratch) {
    qk_sums_tokens(sums.as<float>(), pass, range, scratch);
  });
}

void qk_norm_rope_backward(const QkNormRopeGradients& gradients, const QkNormRopeBackward& call, ConstTensor sums) {
  QkPass pass = backward_pass_of(call, sums);
  const QkNormRopeOptions& options = call.options;
  const Tensor& d_qkv = gradients.d_qkv;
  for (int side = 0; side < 2; ++side) {
    pass.sides[side].dx = advanced(d_qkv.data(), side == 1 ? options.heads * options.head_dim : 0, d_qkv.dtype());
    pass.sides[side].dx_stride = d_qkv.stride(0);
  }
  const int64_t tokens = d_qkv.size(0);
  const int parts = parts_for(pass, tokens);
  const Tensor &d_q = gradients.d_q_weight, &d_k = gradients.d_k_weight;
  const int64_t q_elements = d_q.defined() ? d_q.elements() : 0, k_elements = d_k.defined() ? d_k.elements() : 0;
  const PartialSums d_gains(memory_of_thread().d_gains, q_elements + k_elements, parts);
  // Shared gains take a row from every head of a token.
  const int64_t rows_per_token = pass.sides[0].gain_stride == 0 ? options.heads : 1;
  const int64_t step = std::max<int64_t>(1, PartialSums::kRows / rows_per_token);
  for_tokens(pass, tokens, parts, [&](int part, TokenRange range, QkScratch scratch) {
    d_gains.begin(part);
    if (q_elements > 0) scratch.d_gain[0] = d_gains.few(part);
    if (k_elements > 0) scratch.d_gain[1] = d_gains.few(part) + q_elements;
    for (int64_t begin = range.begin; begin < range.end; begin += step) {
      qk_backward_tokens(pass, {begin, std::min(begin + step, range.end)}, scratch);
      d_gains.flush(part);
    }
  });
  d_gains.add_to(d_q, 0);
  d_gains.add_to(d_k, q_elements);
}

void qk_add_mean_squares(Tensor q, Tensor k, ConstTensor qkv, const QkNormRopeOptions& options) {
  QkNormRopeOptions plain = options;
  plain.rotated = 0;
  QkPass pass = pass_of({qkv, {}, {}, {}, {}}, plain);
  const int64_t tokens = qkv.size(0), heads = options.heads + options.kv_heads, stride = padded(heads);
  const int parts = parts_for(pass, tokens);
  double* squares = grown(memory_of_thread().squares, size_t(stride * parts));
  std::fill_n(squares, stride * parts, 0.0);
  for_tokens(pass, tokens, parts, [&](int part, TokenRange range, QkScratch scratch) {
    scratch.squares[0] = squares + stride * part;
    scratch.squares[1] = scratch.squares[0] + options.heads;
    qk_squares_tokens(pass, range, scratch);
  });
  for (int64_t head = 0; head < heads; ++head) {
    double total = 0;
    for (int part = 0; part < parts; ++part) total += squares[stride * part + head];
    Tensor& out = head < options.heads ? q : k;
    out.as<float>()[head < options.heads ? head : head - options.heads] +=
        float(total / double(std::max<int64_t>(tokens, 1) * options.head_dim));
  }
}

}  // namespace keel::ops::cpu
