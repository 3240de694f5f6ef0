#include "framework/ops/attention/attention_cpu.h"

#include <cmath>
#include <vector>

#include "framework/ops/attention/attention_plan.h"
#include "framework/ops/support/threads.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/attention_cpu.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "framework/ops/support/simd-inl.h"
#include "framework/ops/attention/attention_tile-inl.h"
#include "framework/ops/attention/attention_packed-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {
using cpu::AttentionBlock;
using cpu::AttentionPlan;

// What both directions know: the problem, and one part's scratch memory.
template <class Word>
struct Worker {
  const AttentionPlan& plan;
  const AttentionInputs& inputs;
  const AttentionOptions& options;
  int64_t heads, kv_heads, keys, head_dim;
  PackedKeys<Word> packed_k, packed_v;
  PackedQueries<Word> q;
  ScoreTile<Word> scores;
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
        packed_v{keys, head_dim, {}},
        q{head_dim, {}, {}} {}

  // T may be const.
  template <class T>
  static Matrix<T> rows_of(const ConstTensor& tensor, const AttentionBlock& block) {
    T* data = const_cast<T*>(tensor.as<std::remove_const_t<T>>());
    return {data + block.b * tensor.stride(0) + block.first_row * tensor.stride(1) + block.h * tensor.stride(2),
            tensor.stride(1)};
  }
  float scale(int64_t h) const { return inputs.scale.as<float>()[h]; }
  int64_t depth() const { return words_of<Word>(head_dim); }
  template <class T>
  void pack_keys(int64_t team) {
    packed_k.template pack<T>(inputs.k, team / kv_heads, team % kv_heads);
    packed_v.template pack<T>(inputs.v, team / kv_heads, team % kv_heads);
  }
  template <class T>
  bool pack_q(const AttentionBlock& block) {
    return q.pack(rows_of<const T>(inputs.q, block), block.rows, scale(block.h));
  }

  // f(tile, its view) for every tile of keys that the block sees.
  template <class F>
  void for_tiles(const AttentionBlock& block, const F& f) const {
    Interval seen;
    for (int64_t i = 0; i < block.rows; ++i) seen = seen.joined(plan.visible(block.b, block.first_row + i));
    for (int64_t tile = seen.begin / kTileKeys; tile * kTileKeys < seen.end; ++tile) {
      TileView view(plan, block, {tile * kTileKeys, (tile + 1) * kTileKeys});
      if (!view.seen.empty()) f(tile, view);
    }
  }
  // f(block) for each row alone.
  template <class F>
  static void for_rows(const AttentionBlock& block, const F& f) {
    for (int64_t i = 0; i < block.rows; ++i) f(AttentionBlock{block.b, block.h, block.first_row + i, 1});
  }
  // c += (the tile's values) (keys or values from the tile's first key on).
  void add_over_keys(Matrix<float> c, const ScoreTile<Word>& tile, const PackedKeys<Word>& packed, const TileView& view,
                     bool finite) const {
    tile.narrow_keys(view);
    const Matrix<Word> rows = packed.rows_from(view.first_key);
    if (!finite) packed.hide_ends(rows, view.row[0]);
    add_product<false>(c, tile.by_keys, rows, {view.rows, head_dim}, view.group);
    if (!finite) packed.show_ends(rows, view.row[0]);
  }
};

// Per head, over the blocks of one part.
struct ForwardTotals {
  float* largest;
  int64_t* block;  // the first that reaches it
  double* entropy;
};

template <class Word>
struct ForwardWorker : Worker<Word> {
  using Base = Worker<Word>;
  using Base::depth, Base::head_dim, Base::inputs, Base::options, Base::packed_k, Base::packed_v, Base::plan, Base::q,
      Base::scores;
  const AttentionOutputs& outputs;
  Matrix<float> out;  // [kBlockRows, d]
  ForwardTotals totals;

  ForwardWorker(const Base& worker, const AttentionOutputs& outputs, std::byte* memory)
      : Base(worker), outputs(outputs) {
    Pieces pieces(memory);
    packed_k.take(pieces, true);
    packed_v.take(pieces, false);
    q.take(pieces, false);
    out = pieces.matrix<float>(kBlockRows, head_dim);
    scores.take(pieces, true, false);
    totals = {pieces.take<float>(this->heads), pieces.take<int64_t>(this->heads), pieces.take<double>(this->heads)};
    this->scratch_bytes = pieces.used_bytes();
  }

  template <class T>
  void run(Interval blocks) {
    std::fill_n(totals.largest, this->heads, 0.f);
    std::fill_n(totals.entropy, this->heads, 0.0);
    int64_t packed_team = -1;
    for (int64_t number = blocks.begin; number < blocks.end; ++number) {
      const int64_t team = number / plan.blocks_per_team();
      if (team != packed_team) this->template pack_keys<T>(packed_team = team);
      const AttentionBlock block = plan.block(number);
      const float largest = run_block<T>(block);
      if (!(largest > totals.largest[block.h])) continue;
      totals.largest[block.h] = largest;
      totals.block[block.h] = number;
    }
  }

  // The largest |score|. A value that is not finite would reach through 0 * NaN what must not see it: then each row is
  // a block of its own, and products skip exactly what is hidden from it.
  template <class T>
  float run_block(const AttentionBlock& block) {
    const bool finite = this->template pack_q<T>(block) && packed_k.finite && packed_v.finite;
    if (!finite && block.rows > 1) {
      float largest = 0;
      this->for_rows(block, [&](const AttentionBlock& row) { largest = std::max(largest, run_block<T>(row)); });
      return largest;
    }
    Softmax softmax{.softcap = options.softcap, .want_entropy = outputs.entropy.defined()};
    std::fill_n(softmax.maximum, block.rows, -HUGE_VALF);
    std::fill(out.row(0), out.row(block.rows), 0.f);
    this->for_tiles(block, [&](int64_t tile, const TileView& view) {
      compute_scores(block, tile, view);
      softmax_rows(softmax, view, scores.values, out, head_dim);
      this->add_over_keys(out, scores, packed_v, view, finite);
    });
    finish<T>(block, softmax);
    return softmax.largest;
  }
  void compute_scores(const AttentionBlock& block, int64_t tile, const TileView& view) {
    score_product<Word>(view, scores.values, {q.rows, packed_k.transposed_tile(tile), depth()}, this->scale(block.h));
  }

  // Of the largest |score| of a block, whose scores are computed once more: LogitPlace's number.
  template <class T>
  int64_t place_in(int64_t number) {
    const AttentionBlock block = plan.block(number);
    const int64_t team = number / plan.blocks_per_team();
    this->template pack_keys<T>(team);
    this->template pack_q<T>(block);
    float largest = 0;
    int64_t place = 0;
    this->for_tiles(block, [&](int64_t tile, const TileView& view) {
      compute_scores(block, tile, view);
      for (int64_t i = 0; i < view.rows; ++i)
        for (int64_t j = view.row[i].begin; j < view.row[i].end; ++j) {
          const float score = std::abs(scores.values.row(i)[j]);
          if (score < largest) continue;
          const int64_t here =
              LogitPlace::number_of({options.first_sequence + block.b, block.first_row + i, tile * kTileKeys + j});
          if (score > largest || (score == largest && here > place)) largest = score, place = here;
        }
    });
    return place;
  }

  template <class T>
  void finish(const AttentionBlock& block, const Softmax& softmax) {
    const Matrix<T> to = Base::template rows_of<T>(outputs.out, block);
    float* log_sum_exp = outputs.log_sum_exp.as<float>() + block.b * outputs.log_sum_exp.stride(0) +
                         block.h * outputs.log_sum_exp.stride(1) + block.first_row;
    for (int64_t i = 0; i < block.rows; ++i) {
      const bool blind = plan.visible(block.b, block.first_row + i).empty();
      const float sum = softmax.sum[i];
      log_sum_exp[i] = blind ? -HUGE_VALF : softmax.maximum[i] + std::log(sum);
      if (!blind) totals.entropy[block.h] += double(std::log(sum)) - double(softmax.weighted[i]) / double(sum);
      const Vec factor = splat(blind ? 0.f : 1 / sum);
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Mul(hn::Load(F32(), out.row(i) + j), factor), to.row(i) + j, part);
      });
    }
  }
};

// Gradients of one team's keys and values, by one part: [keys, d] fp32 each.
struct KeyGradients {
  Matrix<float> dk, dv;
};

template <class Word>
struct BackwardWorker : Worker<Word> {
  using Base = Worker<Word>;
  using Base::depth, Base::head_dim, Base::inputs, Base::keys, Base::options, Base::packed_k, Base::packed_v,
      Base::plan, Base::q, Base::scale, Base::scores;
  const AttentionGradients& gradients;
  const ConstTensor& d_out;
  const AttentionOutputs& outputs;
  PackedQueries<Word> packed_d_out;
  Matrix<float> dq;  // [kBlockRows, d]
  ScoreTile<Word> dp;
  // of a team that another part has begun, and of all others
  KeyGradients sums[2];
  double* d_scale;  // [H]

  BackwardWorker(const Base& worker, const AttentionGradients& gradients, const ConstTensor& d_out,
                 const AttentionOutputs& outputs, std::byte* memory)
      : Base(worker), gradients(gradients), d_out(d_out), outputs(outputs), packed_d_out{head_dim, {}, {}} {
    Pieces pieces(memory);
    packed_k.take(pieces, true);
    packed_v.take(pieces, true);
    q.take(pieces, true);
    packed_d_out.take(pieces, true);
    dq = pieces.matrix<float>(kBlockRows, head_dim);
    scores.take(pieces, false, true);
    dp.take(pieces, true, true);
    for (KeyGradients& sum : sums) sum = {pieces.matrix<float>(keys, head_dim), pieces.matrix<float>(keys, head_dim)};
    d_scale = pieces.take<double>(this->heads);
    this->scratch_bytes = pieces.used_bytes();
  }

  bool begun_before(Interval blocks, int64_t team) const { return team * plan.blocks_per_team() < blocks.begin; }
  KeyGradients& sums_of(Interval blocks, int64_t team) { return sums[begun_before(blocks, team) ? 0 : 1]; }

  template <class T>
  void run(Interval blocks) {
    std::fill_n(d_scale, this->heads, 0.0);
    const int64_t per_team = plan.blocks_per_team();
    for (int64_t number = blocks.begin; number < blocks.end;) {
      const int64_t team = number / per_team, end = std::min(blocks.end, (team + 1) * per_team);
      this->template pack_keys<T>(team);
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

  // Where a value is not finite, row by row as in ForwardWorker.
  template <class T>
  void run_block(const AttentionBlock& block, const KeyGradients& sum) {
    const Matrix<const T> of_d_out = Base::template rows_of<const T>(d_out, block);
    bool finite = this->template pack_q<T>(block) && packed_k.finite && packed_v.finite;
    finite &= packed_d_out.pack(of_d_out, block.rows, 1.f);
    if (!finite && block.rows > 1)
      return this->for_rows(block, [&](const AttentionBlock& row) { run_block<T>(row, sum); });
    float dot[kBlockRows];
    dot_rows(dot, Base::template rows_of<const T>(outputs.out, block), of_d_out, block.rows);
    const float* log_sum_exp = outputs.log_sum_exp.as<float>() + block.b * outputs.log_sum_exp.stride(0) +
                               block.h * outputs.log_sum_exp.stride(1) + block.first_row;
    std::fill(dq.row(0), dq.row(block.rows), 0.f);
    this->for_tiles(block, [&](int64_t tile, TileView& view) {
      score_product<Word>(view, scores.values, {q.rows, packed_k.transposed_tile(tile), depth()}, scale(block.h));
      score_product<Word>(view, dp.values, {packed_d_out.rows, packed_v.transposed_tile(tile), depth()}, 1.f);
      softmax_gradient_rows({options.softcap, log_sum_exp, dot}, view, scores.values, dp.values);
      scores.narrow_rows(view, 1.f);
      dp.narrow_rows(view, scale(block.h));
      const int64_t seen = view.seen.begin, key = view.first_key + seen;
      const Size keys_seen{view.seen.size(), head_dim};
      view.find_key_groups();
      add_product<true>(sum.dv.at(key, 0), scores.by_rows.at(0, seen), packed_d_out.zipped, keys_seen, view.key_group);
      add_product<true>(sum.dk.at(key, 0), dp.by_rows.at(0, seen), q.zipped, keys_seen, view.key_group);
      this->add_over_keys(dq, dp, packed_k, view, finite);
    });
    write_dq<T>(block);
  }

  // dot[i] = a[i] . b[i]
  template <class T, class U>
  void dot_rows(float* dot, Matrix<T> a, Matrix<U> b, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* ahead = a.row(std::min(i + kRowsAhead, rows - 1));
      Vec sum = zero();
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        hwy::Prefetch(ahead + j);
        sum = hn::MulAdd(load(a.row(i) + j, part), load(b.row(i) + j, part), sum);
      });
      dot[i] = sum_of(sum);
    }
  }

  // dq = g (dS K), and d_scale = sum over rows of q . (dS K).
  template <class T>
  void write_dq(const AttentionBlock& block) {
    float dot[kBlockRows];
    dot_rows(dot, Base::template rows_of<const T>(inputs.q, block), dq, block.rows);
    const Matrix<T> to = Base::template rows_of<T>(gradients.dq, block);
    for (int64_t i = 0; i < block.rows; ++i) {
      const bool blind = plan.visible(block.b, block.first_row + i).empty();
      if (!blind) d_scale[block.h] += double(dot[i]);
      const Vec factor = splat(blind ? 0.f : scale(block.h));
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Mul(hn::Load(F32(), dq.row(i) + j), factor), to.row(i) + j, part);
      });
    }
  }

  template <class T>
  void write(const Tensor& to, int64_t team, Interval rows, Matrix<float> from) const {
    T* at = to.as<T>() + team / this->kv_heads * to.stride(0) + team % this->kv_heads * to.stride(2);
    for (int64_t i = rows.begin; i < rows.end; ++i)
      for_vectors(size_t(head_dim), [&](size_t j, auto part) HWY_ATTR {
        store(hn::Load(F32(), from.row(i) + j), at + i * to.stride(1) + int64_t(j), part);
      });
  }
};

void add_rows(Matrix<float> to, Matrix<float> from, Interval rows, int64_t columns) {
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
    const auto first = worker_of(part - 1);
    for_parts(first.keys, parts, [&](int, int64_t begin, int64_t end) {
      for (int p = part; p <= last; ++p) {
        if (bounds[p] == bounds[p + 1]) continue;
        const auto other = worker_of(p);
        add_rows(first.sums[1].dk, other.sums[0].dk, {begin, end}, first.head_dim);
        add_rows(first.sums[1].dv, other.sums[0].dv, {begin, end}, first.head_dim);
      }
      first.template write<T>(first.gradients.dk, team, {begin, end}, first.sums[1].dk);
      first.template write<T>(first.gradients.dv, team, {begin, end}, first.sums[1].dv);
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

// f<T, Word>(): values and the words of their tiles.
template <class F>
void dispatch_words(DType dtype, const F& f) {
  dispatch_float(dtype, [&]<class T>() {
    if constexpr (kPairsFit && std::is_same_v<T, bf16>)
      if (cpu::has_pair_products()) return f.template operator()<bf16, Pair>();
    f.template operator()<T, float>();
  });
}

template <class T, class Word>
void attention_forward_of(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                          const AttentionOptions& options) {
  const AttentionPlan plan(inputs, options);
  const Worker<Word> worker(plan, inputs, options);
  const std::span<const int64_t> bounds = bounds_of(plan);
  const int parts = int(bounds.size()) - 1;
  const int64_t part_bytes = ForwardWorker<Word>(worker, outputs, nullptr).scratch_bytes;
  std::byte* scratch = cpu::attention_scratch(parts * part_bytes);
  const auto worker_of = [&](int part) { return ForwardWorker<Word>(worker, outputs, scratch + part * part_bytes); };
  for_parts(parts, parts, [&](int part, int64_t, int64_t) {
    worker_of(part).template run<T>({bounds[part], bounds[part + 1]});
  });
  static thread_local std::vector<int64_t> blocks;  // with the largest logit of each head
  blocks.assign(size_t(worker.heads), -1);
  for (int64_t h = 0; h < worker.heads; ++h) {
    if (outputs.largest_logit.defined())
      blocks[size_t(h)] = raise_largest(outputs.largest_logit.as<float>()[h], h, parts, worker_of);
    if (!outputs.entropy.defined()) continue;
    for (int part = 0; part < parts; ++part) outputs.entropy.as<float>()[h] += float(worker_of(part).totals.entropy[h]);
  }
  if (!outputs.place.defined()) return;
  for_parts(worker.heads, parts, [&, of_heads = std::span(blocks)](int part, int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      if (of_heads[size_t(h)] >= 0)
        outputs.place.as<int64_t>()[h] = worker_of(part).template place_in<T>(of_heads[size_t(h)]);
  });
}

template <class T, class Word>
void attention_backward_of(const AttentionGradients& gradients, const ConstTensor& d_out,
                           const AttentionOutputs& outputs, const AttentionInputs& inputs,
                           const AttentionOptions& options) {
  const AttentionPlan plan(inputs, options);
  const Worker<Word> worker(plan, inputs, options);
  const std::span<const int64_t> bounds = bounds_of(plan);
  const int parts = int(bounds.size()) - 1;
  const int64_t part_bytes = BackwardWorker<Word>(worker, gradients, d_out, outputs, nullptr).scratch_bytes;
  std::byte* scratch = cpu::attention_scratch(parts * part_bytes);
  const auto worker_of = [&](int part) {
    return BackwardWorker<Word>(worker, gradients, d_out, outputs, scratch + part * part_bytes);
  };
  for_parts(parts, parts, [&](int part, int64_t, int64_t) {
    worker_of(part).template run<T>({bounds[part], bounds[part + 1]});
  });
  merge_key_gradients<T>(plan, bounds, worker_of);
  if (!gradients.d_scale.defined()) return;
  for (int64_t h = 0; h < worker.heads; ++h) {
    double sum = 0;
    for (int part = 0; part < parts; ++part) sum += worker_of(part).d_scale[h];
    gradients.d_scale.as<float>()[h] += float(sum);
  }
}

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  dispatch_words(inputs.q.dtype(),
                 [&]<class T, class Word>() { attention_forward_of<T, Word>(outputs, inputs, options); });
}

void attention_backward(const AttentionGradients& gradients, const ConstTensor& d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options) {
  dispatch_words(inputs.q.dtype(), [&]<class T, class Word>() {
    attention_backward_of<T, Word>(gradients, d_out, outputs, inputs, options);
  });
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
