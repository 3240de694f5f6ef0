// A QK-Norm call with random contents, run on the shipped twins over any number of pretended ranks and on the
// reference.
#pragma once

#include <vector>

#include "framework/ops/qk_norm/qk_norm_rope.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "tests/support/compare.h"
#include "tests/support/reference/qk_norm.h"

namespace keel::testing {

enum class Weights { none, shared, per_head };

struct QkShape {
  int64_t tokens = 3, heads = 2, kv_heads = 1, d = 8;
};

// What both sides make, and the gradients of both, in double, as of one rank that holds everything.
struct QkResult {
  Values q, k, dq, dk, dq_weight, dk_weight;
};

struct QkCase {
  QkShape shape;
  DType dtype = DType::f32;
  ops::QkNormRopeOptions options;  // heads, kv_heads, head_dim and the full widths are those of one rank
  Values q, k;                     // [n, H, d], [n, G, d]
  Values q_weight, k_weight;       // empty, [d], or [H, d] and [G, d]
  std::vector<int32_t> positions;
  Values rope;                 // the table, [64, rotated]
  Values dq_out;               // [n, H, d]
  std::vector<Values> dk_out;  // [n, G, d] for each replica of the KV heads: what its query heads contribute
};

inline Values rounded_to(DType dtype, Values values) {
  for (double& value : values) value = dtype == DType::bf16 ? float(bf16(float(value))) : float(value);
  return values;
}

inline QkCase make_case(const QkShape& shape, DType dtype, ops::QkNormRopeOptions options, Weights weights,
                        uint64_t seed) {
  QkCase c{shape, dtype, options, {}, {}, {}, {}, {}, {}, {}, {}};
  c.options.heads = shape.heads;
  c.options.kv_heads = shape.kv_heads;
  c.options.head_dim = shape.d;
  c.options.full_width_q = shape.heads * shape.d;
  c.options.full_width_k = shape.kv_heads * shape.d;
  double scale = std::exp(2 * inverse_normal(uniform(seed, 99)));
  c.q = rounded_to(dtype, random_values(shape.tokens * shape.heads * shape.d, seed + 1, scale, 0.3 * scale));
  c.k = rounded_to(dtype, random_values(shape.tokens * shape.kv_heads * shape.d, seed + 2, scale, -0.2 * scale));
  if (weights != Weights::none) {
    bool shared = weights == Weights::shared;
    double mean = options.zero_centered ? 0 : 1;
    c.q_weight = rounded_to(DType::f32, random_values(shared ? shape.d : shape.heads * shape.d, seed + 3, 0.4, mean));
    c.k_weight =
        rounded_to(DType::f32, random_values(shared ? shape.d : shape.kv_heads * shape.d, seed + 4, 0.4, mean));
  }
  c.dq_out = rounded_to(dtype, random_values(int64_t(c.q.size()), seed + 5));
  c.dk_out = {rounded_to(dtype, random_values(int64_t(c.k.size()), seed + 6))};
  DeviceTensor rope({64, options.rotated}, DType::f32);
  if (options.rotated > 0) ops::rope_table(rope, 100.0);
  c.rope = to_doubles(rope);
  for (int64_t t = 0; t < shape.tokens; ++t)
    c.positions.push_back(int32_t(random_integer(seed + 7, uint64_t(t), 0, 64)));
  return c;
}

inline reference::QkSide reference_side(const QkCase& c, bool k) {
  reference::QkSide side;
  const auto& o = c.options;
  side.tokens = c.shape.tokens;
  side.heads = k ? c.shape.kv_heads : c.shape.heads;
  side.d = c.shape.d;
  side.rotated = o.rotated;
  side.kind = o.kind;
  side.scope = o.scope;
  side.eps = double(o.eps);
  side.zero_centered = o.zero_centered;
  side.after_rope = o.after_rope;
  side.round_to_bf16 = o.cast_before_weight && c.dtype == DType::bf16;
  side.weight = k ? c.k_weight : c.q_weight;
  for (int32_t position : c.positions)
    side.table.insert(side.table.end(), c.rope.begin() + position * o.rotated,
                      c.rope.begin() + (position + 1) * o.rotated);
  return side;
}

inline QkResult reference_result(const QkCase& c) {
  reference::QkSide q = reference_side(c, false), k = reference_side(c, true);
  Values dk_out(c.k.size());
  for (const Values& part : c.dk_out)
    for (size_t i = 0; i < part.size(); ++i) dk_out[i] += part[i];
  auto q_gradients = reference::qk_norm_backward(q, c.dq_out, c.q);
  auto k_gradients = reference::qk_norm_backward(k, dk_out, c.k);
  return {reference::qk_norm_forward(q, c.q),
          reference::qk_norm_forward(k, c.k),
          q_gradients.dx,
          k_gradients.dx,
          q_gradients.d_weight,
          k_gradients.d_weight};
}

// Heads [first, first + count) of [n, heads, d] or [heads, d].
inline Values heads_of(const Values& x, int64_t heads, int64_t d, int64_t first, int64_t count) {
  Values part;
  for (int64_t start = 0; start < int64_t(x.size()); start += heads * d)
    part.insert(part.end(), x.begin() + start + first * d, x.begin() + start + (first + count) * d);
  return part;
}
inline void add_heads(Values& x, int64_t heads, int64_t d, int64_t first, const Values& part, int64_t count) {
  for (size_t i = 0; i < part.size(); ++i) {
    int64_t row = int64_t(i) / (count * d), column = int64_t(i) % (count * d);
    x[size_t(row * heads * d + first * d + column)] += part[i];
  }
}

// One pretended rank: its heads, its tensors.
class QkRank {
 public:
  QkRank(const QkCase& c, int64_t rank, int64_t ranks) : case_(c), options_(c.options) {
    const QkShape& s = c.shape;
    int64_t replicas = std::max<int64_t>(1, ranks / s.kv_heads);
    replica_ = rank % replicas;
    options_.heads = heads_ = s.heads / ranks;
    options_.kv_heads = kv_heads_ = std::max<int64_t>(1, s.kv_heads / ranks);
    options_.kv_replicas = replicas;
    first_ = rank * heads_;
    first_kv_ = rank / replicas * kv_heads_;
    Values q = heads_of(c.q, s.heads, s.d, first_, heads_), k = heads_of(c.k, s.kv_heads, s.d, first_kv_, kv_heads_);
    qkv = DeviceTensor({s.tokens, (heads_ + 2 * kv_heads_) * s.d}, c.dtype);
    d_qkv = DeviceTensor(qkv.tensor.shape(), c.dtype);
    set_values(qkv.tensor.slice(1, 0, heads_ * s.d), q);
    set_values(qkv.tensor.slice(1, heads_ * s.d, (heads_ + kv_heads_) * s.d), k);
    fill_random(d_qkv, 77);  // v's columns must stay, the others must go
    fill_random(qkv.tensor.slice(1, (heads_ + kv_heads_) * s.d, (heads_ + 2 * kv_heads_) * s.d), 78);
    positions = device_tensor(c.positions);
    rope = tensor_of({64, options_.rotated}, DType::f32, c.rope);
    make_weight(q_weight, d_q_weight, c.q_weight, s.heads, first_, heads_);
    make_weight(k_weight, d_k_weight, c.k_weight, s.kv_heads, first_kv_, kv_heads_);
    q_out = DeviceTensor({s.tokens, heads_, s.d}, c.dtype);
    k_out = DeviceTensor({s.tokens, kv_heads_, s.d}, c.dtype);
    dq_out = tensor_of(q_out.tensor.shape(), c.dtype, heads_of(c.dq_out, s.heads, s.d, first_, heads_));
    dk_out = tensor_of(k_out.tensor.shape(), c.dtype,
                       heads_of(c.dk_out[size_t(replica_)], s.kv_heads, s.d, first_kv_, kv_heads_));
  }

  ops::QkNormRopeInputs inputs() const { return {qkv, q_weight, k_weight, rope, positions}; }
  const ops::QkNormRopeOptions& options() const { return options_; }
  ops::QkNormRopeBackward backward(ConstTensor statistics) const {
    return {dq_out, dk_out, inputs(), statistics, options_};
  }
  ops::QkNormRopeGradients gradients() const { return {d_qkv, d_q_weight, d_k_weight}; }

  // Adds what this rank made to the whole.
  void collect(QkResult& all) const {
    const QkShape& s = case_.shape;
    add_heads(all.q, s.heads, s.d, first_, to_doubles(q_out), heads_);
    if (replica_ == 0) add_heads(all.k, s.kv_heads, s.d, first_kv_, to_doubles(k_out), kv_heads_);
    add_heads(all.dq, s.heads, s.d, first_, to_doubles(d_qkv.tensor.slice(1, 0, heads_ * s.d)), heads_);
    Values dk = to_doubles(d_qkv.tensor.slice(1, heads_ * s.d, (heads_ + kv_heads_) * s.d));
    add_heads(all.dk, s.kv_heads, s.d, first_kv_, dk, kv_heads_);
    collect_weight(all.dq_weight, d_q_weight, s.heads, first_, heads_);
    collect_weight(all.dk_weight, d_k_weight, s.kv_heads, first_kv_, kv_heads_);
  }

  DeviceTensor qkv, d_qkv, rope, positions, q_weight, k_weight, d_q_weight, d_k_weight, q_out, k_out, dq_out, dk_out;

 private:
  void make_weight(DeviceTensor& weight, DeviceTensor& gradient, const Values& all, int64_t heads, int64_t first,
                   int64_t count) {
    int64_t d = case_.shape.d;
    if (all.empty()) return;
    bool shared = int64_t(all.size()) == d && (heads > 1 || options_.scope == ops::QkNormScope::head);
    weight = shared ? tensor_of({d}, DType::f32, all)
                    : tensor_of({count, d}, DType::f32, heads_of(all, heads, d, first, count));
    gradient = DeviceTensor(weight.tensor.shape(), DType::f32);
  }
  void collect_weight(Values& all, const DeviceTensor& gradient, int64_t heads, int64_t first, int64_t count) const {
    if (!gradient.tensor.defined()) return;
    bool shared = gradient.tensor.dims() == 1;
    add_heads(all, shared ? 1 : heads, case_.shape.d, shared ? 0 : first, to_doubles(gradient), shared ? 1 : count);
  }

  const QkCase& case_;
  ops::QkNormRopeOptions options_;
  int64_t heads_, kv_heads_, first_, first_kv_, replica_;
};

// What the ranks of a tensor group would exchange: column sums of [n, columns], or layer's gathered statistics.
inline DeviceTensor combined(const std::vector<DeviceTensor>& parts) {
  Values total(size_t(parts[0].tensor.elements()));
  for (const DeviceTensor& part : parts) {
    Values values = to_doubles(part);
    for (size_t i = 0; i < total.size(); ++i) total[i] += values[i];
  }
  return tensor_of(parts[0].tensor.shape(), DType::f32, total);
}
inline DeviceTensor merged(const std::vector<DeviceTensor>& parts, const ops::QkNormRopeOptions& options) {
  Values all;
  for (const DeviceTensor& part : parts) {
    Values values = to_doubles(part);
    all.insert(all.end(), values.begin(), values.end());
  }
  int64_t tokens = parts[0].tensor.size(0);
  DeviceTensor gathered = tensor_of({int64_t(parts.size()), tokens, 4}, DType::f32, all),
               result({tokens, 4}, DType::f32);
  ops::qk_norm_merge_statistics(result, gathered, options);
  return result;
}

// The shipped twins over `ranks` pretended ranks, forward and backward.
inline QkResult run_case(const QkCase& c, int64_t ranks = 1) {
  std::vector<QkRank> group;
  for (int64_t rank = 0; rank < ranks; ++rank) group.emplace_back(c, rank, ranks);
  bool full = c.options.kind != ops::QkNormKind::none && c.options.scope == ops::QkNormScope::full;
  bool layer = c.options.kind == ops::QkNormKind::layer;
  DeviceTensor statistics, sums;
  std::vector<DeviceTensor> parts;
  auto exchange = [&](auto&& make) {
    parts.clear();
    for (QkRank& rank : group) make(rank, parts.emplace_back(Shape{c.shape.tokens, layer ? 4 : 2}, DType::f32));
  };
  if (full) {
    exchange([](QkRank& r, Tensor out) { ops::qk_norm_partial_statistics(out, r.inputs(), r.options()); });
    statistics = layer ? merged(parts, group[0].options()) : combined(parts);
  }
  for (QkRank& r : group) ops::qk_norm_rope_forward(r.q_out, r.k_out, r.inputs(), statistics, r.options());
  if (full) {
    exchange([&](QkRank& r, Tensor out) { ops::qk_norm_backward_sums(out, r.backward(statistics)); });
    sums = combined(parts);
  }
  QkResult all{Values(c.q.size()), Values(c.k.size()),        Values(c.q.size()),
               Values(c.k.size()), Values(c.q_weight.size()), Values(c.k_weight.size())};
  for (QkRank& r : group) {
    ops::qk_norm_rope_backward(r.gradients(), r.backward(statistics), sums);
    r.collect(all);
  }
  return all;
}

}  // namespace keel::testing
