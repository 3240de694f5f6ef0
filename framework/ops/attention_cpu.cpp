#include "framework/ops/attention_cpu.h"

#include <cmath>
#include <vector>

#include "framework/ops/attention_plan.h"
#include "framework/ops/threads.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/simd-inl.h"
#include "framework/ops/attention_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {
using cpu::AttentionBlock;
using cpu::AttentionPlan;

// Hands out pieces of a part's scratch memory; counts only when it has none.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(int64_t elements) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + used_bytes_) : nullptr;
    used_bytes_ += (elements * int64_t(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  Matrix matrix(int64_t rows, int64_t columns) {
    return {take<float>(rows * row_stride(columns)), row_stride(columns)};
  }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* memory_;
  int64_t used_bytes_ = 0;
};

// Keys or values of one team in fp32, by tiles of kTileKeys.
struct PackedKeys {
  int64_t keys, head_dim;
  Matrix rows;                  // [keys, d], where asked for
  float* transposed = nullptr;  // per tile [d, kTileKeys], where asked for
  bool finite = true;

  static constexpr int64_t kUnit = 16;  // transposed tiles are whole in this many keys
  int64_t tile_floats() const { return vectors_of(head_dim) * lanes() * kScoreStride; }
  int64_t tiles() const { return (keys + kTileKeys - 1) / kTileKeys; }
  Matrix transposed_tile(int64_t tile) const { return {transposed + tile * tile_floats(), kScoreStride}; }

  void take(Pieces& pieces, bool want_transposed) {
    rows = pieces.matrix((keys + kUnit - 1) / kUnit * kUnit, head_dim);
    if (want_transposed) transposed = pieces.take<float>(tiles() * tile_floats());
  }
  template <class T>
  void pack(const ConstTensor& tensor, int64_t b, int64_t g) {
    const T* from = tensor.as<T>() + b * tensor.stride(0) + g * tensor.stride(2);
    finite = pack_rows(rows, from, tensor.stride(1), keys, head_dim, 1.f);
    if (!transposed) return;
    const int64_t whole = (keys + kUnit - 1) / kUnit * kUnit;
    std::fill(rows.row(keys), rows.row(whole), 0.f);
    for (int64_t key = 0; key < keys; key += kTileKeys)
      transpose(transposed_tile(key / kTileKeys), rows.at(key, 0), std::min(kTileKeys, whole - key), head_dim);
  }
};

// What both directions know: the problem, and one part's scratch memory.
struct Worker {
  const AttentionPlan& plan;
  const AttentionInputs& inputs;
  const AttentionOptions& options;
  int64_t heads, kv_heads, keys, head_dim;
  PackedKeys packed_k, packed_v;
  Matrix q, scores;  // [kBlockRows, d] times g; [kBlockRows, kTileKeys]
  int64_t scratch_bytes = 0;

  Worker(const AttentionPlan& plan, const AttentionInputs& inputs, const AttentionOptions& options)
      : plan(plan),
        inputs(inputs),
        options(options),
        heads(inputs.q.size(2)),
        kv_heads(inputs.k.size(2)),
        keys(inputs.k.size(1)),
        head_dim(inputs.k.size(3)),
        packed_k{keys, head_dim, {}},
        packed_v{keys, head_dim, {}} {}

  template <class T>
  static T* rows_of(const ConstTensor& tensor, const AttentionBlock& block) {
    return const_cast<T*>(tensor.as<T>()) + block.b * tensor.stride(0) + block.first_row * tensor.stride(1) +
           block.h * tensor.stride(2);
  }
  float scale(int64_t h) const { return inputs.scale.as<float>()[h]; }
  template <class T>
  bool pack_q(const AttentionBlock& block) {
    return pack_rows(q, rows_of<T>(inputs.q, block), inputs.q.stride(1), block.rows, head_dim, scale(block.h));
  }

  // f(tile, rows, first row within the block) for every tile of keys that the block sees. A value that is not finite
  // would reach through 0 * NaN what must not see it: then row by row, where products skip exactly what is hidden.
  template <class F>
  void for_tiles(const AttentionBlock& block, bool finite, const F& f) {
    const int64_t step = finite ? block.rows : 1;
    for (int64_t first = 0; first < block.rows; first += step) {
      const AttentionBlock rows = {block.b, block.h, block.first_row + first, step};
      Interval seen;
      for (int64_t i = 0; i < step; ++i) seen = seen.joined(plan.visible(rows.b, rows.first_row + i));
      for (int64_t tile = seen.begin / kTileKeys; tile * kTileKeys < seen.end; ++tile) {
        TileView view(plan, rows, {tile * kTileKeys, (tile + 1) * kTileKeys});
        if (!view.seen.empty()) f(tile, view, first);
      }
    }
  }
};

// Per head, over the blocks of one part.
struct ForwardTotals {
  float* largest;
  int64_t* block;  // the first that reaches it
  double* entropy;
};

struct ForwardWorker : Worker {
  const AttentionOutputs& outputs;
  Matrix out;  // [kBlockRows, d]
  ForwardTotals totals;

  ForwardWorker(const Worker& worker, const AttentionOutputs& outputs, std::byte* memory)
      : Worker(worker), outputs(outputs) {
    Pieces pieces(memory);
    packed_k.take(pieces, true);
    packed_v.take(pieces, false);
    q = pieces.matrix(kBlockRows, head_dim);
    out = pieces.matrix(kBlockRows, head_dim);
    scores = pieces.matrix(kBlockRows, kTileKeys);
    totals = {pieces.take<float>(heads), pieces.take<int64_t>(heads), pieces.take<double>(heads)};
    scratch_bytes = pieces.used_bytes();
  }

  template <class T>
  void run(Interval blocks) {
    std::fill_n(totals.largest, heads, 0.f);
    std::fill_n(totals.entropy, heads, 0.0);
    int64_t packed_team = -1;
    for (int64_t number = blocks.begin; number < blocks.end; ++number) {
      const int64_t team = number / plan.blocks_per_team();
      if (team != packed_team) {
        packed_k.pack<T>(inputs.k, team / kv_heads, team % kv_heads);
        packed_v.pack<T>(inputs.v, team / kv_heads, team % kv_heads);
        packed_team = team;
      }
      const AttentionBlock block = plan.block(number);
      const float largest = run_block<T>(block);
      if (!(largest > totals.largest[block.h])) continue;
      totals.largest[block.h] = largest;
      totals.block[block.h] = number;
    }
  }

  // The largest |score|.
  template <class T>
  float run_block(const AttentionBlock& block) {
    const bool finite = pack_q<T>(block) && packed_k.finite && packed_v.finite;
    Softmax softmax{.softcap = options.softcap, .want_entropy = options.want_entropy};
    std::fill_n(softmax.maximum, block.rows, -HUGE_VALF);
    std::fill(out.row(0), out.row(block.rows), 0.f);
    for_tiles(block, finite, [&](int64_t tile, const TileView& view, int64_t first) {
      score_product(view, scores, q.at(first, 0), packed_k.transposed_tile(tile), head_dim);
      softmax_rows(softmax, view, first, scores, out.at(first, 0), head_dim);
      add_product<false>(out.at(first, 0), scores, packed_v.rows.at(tile * kTileKeys, 0), view.rows, head_dim,
                         view.group);
    });
    finish<T>(block, softmax);
    return softmax.largest;
  }

  // Of the largest |score| of a block, whose scores are computed once more: LogitPlace's number.
  template <class T>
  int64_t place_in(int64_t number) {
    const AttentionBlock block = plan.block(number);
    const int64_t team = number / plan.blocks_per_team();
    packed_k.pack<T>(inputs.k, team / kv_heads, team % kv_heads);
    float largest = 0;
    int64_t place = 0;
    for_tiles(block, pack_q<T>(block) && packed_k.finite, [&](int64_t tile, const TileView& view, int64_t first) {
      score_product(view, scores, q.at(first, 0), packed_k.transposed_tile(tile), head_dim);
      for (int64_t i = 0; i < view.rows; ++i)
        for (int64_t j = view.row[i].begin; j < view.row[i].end; ++j) {
          const float score = std::abs(scores.row(i)[j]);
          if (score < largest) continue;
          const int64_t here = LogitPlace::number_of(
              {options.first_sequence + block.b, block.first_row + first + i, tile * kTileKeys + j});
          if (score > largest || (score == largest && here > place)) largest = score, place = here;
        }
    });
    return place;
  }

  template <class T>
  void finish(const AttentionBlock& block, const Softmax& softmax) {
    T* to = rows_of<T>(outputs.out, block);
    float* log_sum_exp = outputs.log_sum_exp.as<float>() + block.b * outputs.log_sum_exp.stride(0) +
                         block.h * outputs.log_sum_exp.stride(1) + block.first_row;
    for (int64_t i = 0; i < block.rows; ++i) {
      const bool blind = plan.visible(block.b, block.first_row + i).empty();
      const float sum = softmax.sum[i];
      log_sum_exp[i] = blind ? -HUGE_VALF : softmax.maximum[i] + std::log(sum);
      if (!blind) totals.entropy[block.h] += double(std::log(sum)) - double(softmax.weighted[i]) / double(sum);
      const Vec factor = splat(blind ? 0.f : 1 / sum);
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Mul(hn::Load(F32(), out.row(i) + j), factor), to + i * outputs.out.stride(1) + int64_t(j), part);
      });
    }
  }
};

// Gradients of one team's keys and values, by one part: [keys, d] fp32 each.
struct KeyGradients {
  Matrix dk, dv;
};

struct BackwardWorker : Worker {
  const AttentionGradients& gradients;
  const ConstTensor& d_out;
  const AttentionOutputs& outputs;
  Matrix packed_d_out, dq, dp;  // [kBlockRows, d], [kBlockRows, d], [kBlockRows, kTileKeys]
  // of a team that another part has begun, and of all others
  KeyGradients sums[2];
  double* d_scale;  // [H]

  BackwardWorker(const Worker& worker, const AttentionGradients& gradients, const ConstTensor& d_out,
                 const AttentionOutputs& outputs, std::byte* memory)
      : Worker(worker), gradients(gradients), d_out(d_out), outputs(outputs) {
    Pieces pieces(memory);
    packed_k.take(pieces, true);
    packed_v.take(pieces, true);
    q = pieces.matrix(kBlockRows, head_dim);
    packed_d_out = pieces.matrix(kBlockRows, head_dim);
    dq = pieces.matrix(kBlockRows, head_dim);
    scores = pieces.matrix(kBlockRows, kTileKeys);
    dp = pieces.matrix(kBlockRows, kTileKeys);
    for (KeyGradients& sum : sums) sum = {pieces.matrix(keys, head_dim), pieces.matrix(keys, head_dim)};
    d_scale = pieces.take<double>(heads);
    scratch_bytes = pieces.used_bytes();
  }

  bool begun_before(Interval blocks, int64_t team) const { return team * plan.blocks_per_team() < blocks.begin; }
  KeyGradients& sums_of(Interval blocks, int64_t team) { return sums[begun_before(blocks, team) ? 0 : 1]; }

  template <class T>
  void run(Interval blocks) {
    std::fill_n(d_scale, heads, 0.0);
    const int64_t per_team = plan.blocks_per_team();
    for (int64_t number = blocks.begin; number < blocks.end;) {
      const int64_t team = number / per_team, end = std::min(blocks.end, (team + 1) * per_team);
      packed_k.pack<T>(inputs.k, team / kv_heads, team % kv_heads);
      packed_v.pack<T>(inputs.v, team / kv_heads, team % kv_heads);
      KeyGradients& sum = sums_of(blocks, team);
      std::fill(sum.dk.row(0), sum.dk.row(keys), 0.f);
      std::fill(sum.dv.row(0), sum.dv.row(keys), 0.f);
      for (; number < end; ++number) run_block<T>(plan.block(number), sum);
      if (!begun_before(blocks, team) && end == (team + 1) * per_team) {
        write<T>(gradients.dk, team, {0, keys}, sum.dk);
        write<T>(gradients.dv, team, {0, keys}, sum.dv);
      }
    }
  }

  template <class T>
  void run_block(const AttentionBlock& block, const KeyGradients& sum) {
    bool finite = pack_q<T>(block) && packed_k.finite && packed_v.finite;
    finite &= pack_rows(packed_d_out, rows_of<T>(d_out, block), d_out.stride(1), block.rows, head_dim, 1.f);
    float dot[kBlockRows];
    dot_rows(dot, rows_of<T>(outputs.out, block), outputs.out.stride(1), packed_d_out, block.rows);
    const float* log_sum_exp = outputs.log_sum_exp.as<float>() + block.b * outputs.log_sum_exp.stride(0) +
                               block.h * outputs.log_sum_exp.stride(1) + block.first_row;
    std::fill(dq.row(0), dq.row(block.rows), 0.f);
    for_tiles(block, finite, [&](int64_t tile, TileView& view, int64_t first) {
      const Matrix of_q = q.at(first, 0), of_d_out = packed_d_out.at(first, 0);
      score_product(view, scores, of_q, packed_k.transposed_tile(tile), head_dim);
      score_product(view, dp, of_d_out, packed_v.transposed_tile(tile), head_dim);
      softmax_gradient_rows(view, scores, dp, log_sum_exp + first, dot + first, options.softcap);
      const int64_t key = tile * kTileKeys, seen = view.seen.begin;
      view.find_key_groups();
      add_product<true>(sum.dv.at(key + seen, 0), scores.at(0, seen), of_d_out, view.seen.size(), head_dim,
                        view.key_group);
      add_product<true>(sum.dk.at(key + seen, 0), dp.at(0, seen), of_q, view.seen.size(), head_dim, view.key_group);
      add_product<false>(dq.at(first, 0), dp, packed_k.rows.at(key, 0), view.rows, head_dim, view.group);
    });
    write_dq<T>(block);
  }

  // dot[i] = a[i] . b[i]
  template <class T>
  void dot_rows(float* dot, const T* a, int64_t stride, Matrix b, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* ahead = a + std::min(i + kRowsAhead, rows - 1) * stride;
      Vec sum = zero();
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        hwy::Prefetch(ahead + j);
        sum = hn::MulAdd(load(a + i * stride + int64_t(j), part), hn::Load(F32(), b.row(i) + j), sum);
      });
      dot[i] = sum_of(sum);
    }
  }

  // dq = g (dS K), and d_scale = sum over rows of q . (dS K).
  template <class T>
  void write_dq(const AttentionBlock& block) {
    float dot[kBlockRows];
    dot_rows(dot, rows_of<T>(inputs.q, block), inputs.q.stride(1), dq, block.rows);
    T* to = rows_of<T>(gradients.dq, block);
    for (int64_t i = 0; i < block.rows; ++i) {
      const bool blind = plan.visible(block.b, block.first_row + i).empty();
      if (!blind) d_scale[block.h] += double(dot[i]);
      const Vec factor = splat(blind ? 0.f : scale(block.h));
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Mul(hn::Load(F32(), dq.row(i) + j), factor), to + i * gradients.dq.stride(1) + int64_t(j), part);
      });
    }
  }

  template <class T>
  void write(const Tensor& to, int64_t team, Interval rows, Matrix from) const {
    T* at = to.as<T>() + team / kv_heads * to.stride(0) + team % kv_heads * to.stride(2);
    for (int64_t i = rows.begin; i < rows.end; ++i)
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Load(F32(), from.row(i) + j), at + i * to.stride(1) + int64_t(j), part);
      });
  }
};

void add_rows(Matrix to, Matrix from, Interval rows, int64_t columns) {
  for (int64_t i = rows.begin; i < rows.end; ++i)
    for_vectors(size_t(columns), [&](size_t j, auto) HWY_ATTR {
      float* at = to.row(i) + j;
      hn::Store(hn::Add(hn::Load(F32(), at), hn::Load(F32(), from.row(i) + j)), F32(), at);
    });
}

// Sums, in the order of the parts, of teams that more than one part worked on.
template <class T, class WorkerOf>
void merge_key_gradients(const AttentionPlan& plan, std::span<const int64_t> bounds, const WorkerOf& worker_of) {
  const int parts = int(bounds.size()) - 1;
  for (int part = 1, last = 1; part < parts; part = last + 1) {
    last = part;
    const int64_t team = bounds[part] / plan.blocks_per_team(), team_end = (team + 1) * plan.blocks_per_team();
    if (bounds[part] % plan.blocks_per_team() == 0) continue;
    while (last + 1 < parts && bounds[last + 1] < team_end) ++last;
    const BackwardWorker first = worker_of(part - 1);
    for_parts(first.keys, parts, [&](int, int64_t begin, int64_t end) {
      for (int p = part; p <= last; ++p) {
        if (bounds[p] == bounds[p + 1]) continue;
        const BackwardWorker other = worker_of(p);
        add_rows(first.sums[1].dk, other.sums[0].dk, {begin, end}, first.head_dim);
        add_rows(first.sums[1].dv, other.sums[0].dv, {begin, end}, first.head_dim);
      }
      first.write<T>(first.gradients.dk, team, {begin, end}, first.sums[1].dk);
      first.write<T>(first.gradients.dv, team, {begin, end}, first.sums[1].dv);
    });
  }
}

std::span<int64_t> bounds_of(const AttentionPlan& plan) {
  static thread_local std::vector<int64_t> bounds;
  bounds.resize(size_t(std::min<int64_t>(omp_get_max_threads(), plan.blocks())) + 1);
  plan.split(bounds);
  return bounds;
}

// largest[h] = the maximum of itself and the parts'. Returns the block that raised it, the first one, or -1.
template <class WorkerOf>
int64_t raise_largest(float& largest, int64_t h, int parts, const WorkerOf& worker_of) {
  int64_t block = -1;
  for (int part = 0; part < parts; ++part) {
    const ForwardTotals totals = worker_of(part).totals;
    if (totals.largest[h] > largest) largest = totals.largest[h], block = totals.block[h];
  }
  return block;
}

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  const AttentionPlan plan(inputs, options);
  const Worker worker(plan, inputs, options);
  const std::span<const int64_t> bounds = bounds_of(plan);
  const int parts = int(bounds.size()) - 1;
  const int64_t part_bytes = ForwardWorker(worker, outputs, nullptr).scratch_bytes;
  std::byte* scratch = cpu::attention_scratch(parts * part_bytes);
  const auto worker_of = [&](int part) { return ForwardWorker(worker, outputs, scratch + part * part_bytes); };
  dispatch_float(inputs.q.dtype(), [&]<class T>() {
    for_parts(parts, parts, [&](int part, int64_t, int64_t) {
      worker_of(part).template run<T>({bounds[part], bounds[part + 1]});
    });
  });
  static thread_local std::vector<int64_t> blocks;  // with the largest logit of each head
  blocks.assign(size_t(worker.heads), -1);
  for (int64_t h = 0; h < worker.heads; ++h) {
    if (outputs.largest_logit.defined())
      blocks[size_t(h)] = raise_largest(outputs.largest_logit.as<float>()[h], h, parts, worker_of);
    if (!options.want_entropy) continue;
    for (int part = 0; part < parts; ++part) outputs.entropy.as<float>()[h] += float(worker_of(part).totals.entropy[h]);
  }
  if (!outputs.place.defined()) return;
  dispatch_float(inputs.q.dtype(), [&, of_heads = std::span(blocks)]<class T>() {
    for_parts(worker.heads, parts, [&](int part, int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        if (of_heads[size_t(h)] >= 0)
          outputs.place.as<int64_t>()[h] = worker_of(part).template place_in<T>(of_heads[size_t(h)]);
    });
  });
}

void attention_backward(const AttentionGradients& gradients, const ConstTensor& d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options) {
  const AttentionPlan plan(inputs, options);
  const Worker worker(plan, inputs, options);
  const std::span<const int64_t> bounds = bounds_of(plan);
  const int parts = int(bounds.size()) - 1;
  const int64_t part_bytes = BackwardWorker(worker, gradients, d_out, outputs, nullptr).scratch_bytes;
  std::byte* scratch = cpu::attention_scratch(parts * part_bytes);
  const auto worker_of = [&](int part) {
    return BackwardWorker(worker, gradients, d_out, outputs, scratch + part * part_bytes);
  };
  dispatch_float(inputs.q.dtype(), [&]<class T>() {
    for_parts(parts, parts, [&](int part, int64_t, int64_t) {
      worker_of(part).template run<T>({bounds[part], bounds[part + 1]});
    });
    merge_key_gradients<T>(plan, bounds, worker_of);
  });
  if (!gradients.d_scale.defined()) return;
  for (int64_t h = 0; h < worker.heads; ++h) {
    double sum = 0;
    for (int part = 0; part < parts; ++part) sum += worker_of(part).d_scale[h];
    gradients.d_scale.as<float>()[h] += float(sum);
  }
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops::cpu {
HWY_EXPORT(attention_forward);
HWY_EXPORT(attention_backward);

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  HWY_DYNAMIC_DISPATCH(attention_forward)(outputs, inputs, options);
}

void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options) {
  HWY_DYNAMIC_DISPATCH(attention_backward)(gradients, d_out, outputs, inputs, options);
}

}  // namespace keel::ops::cpu
#endif  // HWY_ONCE
