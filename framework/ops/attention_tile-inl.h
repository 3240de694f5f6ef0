// The arithmetic of one tile of attention: small matrix products on fp32 tiles, softmax rows and their gradient.
// Included once per target after simd-inl.h, hence no include guard.
//
// Masks are intervals: a row of a tile sees the keys [begin, end). Products skip what a group of rows does not see, and
// a score outside its row's interval is overwritten (by -infinity, or its gradient by 0), never added to.
#include <array>
#include <utility>

#include "framework/ops/attention_plan.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {
using cpu::Interval;
using cpu::kBlockRows;
using cpu::kTileKeys;

// Rows of c that the kernel keeps in registers, beside two vectors of b and one of a: 16 registers hold 6 rows, 32
// hold 8.
constexpr int kGroup = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 6;
constexpr int kPanel = 2;  // vectors
static_assert(kBlockRows % kGroup == 0);

// Row strides in floats are odd multiples of 64 bytes: rows of one column then spread over the sets of a cache.
constexpr int64_t row_stride(int64_t columns) {
  return ((columns + 15) / 16 | 1) * 16;
}
constexpr int64_t kScoreStride = row_stride(kTileKeys);

HWY_INLINE int64_t lanes() {
  return int64_t(hn::Lanes(F32()));
}
HWY_INLINE int64_t vectors_of(int64_t n) {
  return (n + lanes() - 1) / lanes();
}
// The interval of whole vectors that covers this one.
HWY_INLINE Interval padded(Interval keys) {
  return {keys.begin / lanes() * lanes(), vectors_of(keys.end) * lanes()};
}

// fp32 rows in scratch memory; `at` is an element of it.
struct Matrix {
  float* data;
  int64_t stride;

  HWY_INLINE float* row(int64_t i) const { return data + i * stride; }
  HWY_INLINE Matrix at(int64_t i, int64_t j) const { return {data + i * stride + j, stride}; }
};

// c [kRows, kVectors vectors] = (c +) a b with a [kRows, depth], or a stored as [depth, kRows].
template <bool kTransposed, bool kAccumulate, int kRows, int kVectors>
void product_kernel(Matrix c, Matrix a, Matrix b, int64_t depth) {
  const F32 f32;
  const int64_t step = lanes();
  Vec sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) HWY_UNROLL(2)
  for (int j = 0; j < kVectors; ++j) sum[i][j] = kAccumulate ? hn::Load(f32, c.row(i) + j * step) : zero();
  const float* a_at = a.data;
  const float* b_at = b.data;
  for (int64_t k = 0; k < depth; ++k) {
    Vec of_b[kVectors];
    HWY_UNROLL(2)
    for (int j = 0; j < kVectors; ++j) of_b[j] = hn::Load(f32, b_at + j * step);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const Vec of_a = splat(kTransposed ? a_at[i] : a_at[i * a.stride]);
      HWY_UNROLL(2)
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(of_a, of_b[j], sum[i][j]);
    }
    a_at += kTransposed ? a.stride : 1;
    b_at += b.stride;
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) HWY_UNROLL(2)
  for (int j = 0; j < kVectors; ++j) hn::Store(sum[i][j], f32, c.row(i) + j * step);
}

using ProductKernel = void (*)(Matrix, Matrix, Matrix, int64_t);
template <bool kTransposed, bool kAccumulate, int... kRows>
constexpr auto kernels_of(std::integer_sequence<int, kRows...>) {
  return std::array<std::array<ProductKernel, kPanel>, kGroup>{
      std::array<ProductKernel, kPanel>{product_kernel<kTransposed, kAccumulate, kRows + 1, 1>,
                                        product_kernel<kTransposed, kAccumulate, kRows + 1, 2>}...};
}
// kernels<...>[rows - 1][vectors - 1]
template <bool kTransposed, bool kAccumulate>
constexpr auto kernels = kernels_of<kTransposed, kAccumulate>(std::make_integer_sequence<int, kGroup>());

// What the rows of a tile see of its keys.
struct TileView {
  int64_t rows = 0;
  Interval seen;                          // by any row
  Interval row[kBlockRows];               // by each; empty at seen.begin where it sees nothing
  Interval group[kBlockRows / 6];         // by any of a group of kGroup rows
  Interval key_group[kTileKeys / 6 + 1];  // the rows that see any of kGroup keys, counted from seen.begin

  TileView(const cpu::AttentionPlan& plan, const cpu::AttentionBlock& block, Interval keys) : rows(block.rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const Interval sees = plan.visible(block.b, block.first_row + i).intersected(keys);
      row[i] = sees.empty() ? Interval{} : Interval{sees.begin - keys.begin, sees.end - keys.begin};
      group[i / kGroup] = group[i / kGroup].joined(row[i]);
    }
    for (const Interval& of_group : group) seen = seen.joined(of_group);
    for (int64_t i = 0; i < rows; ++i)
      if (row[i].empty()) row[i] = {seen.begin, seen.begin};
  }
  void find_key_groups() {
    for (int64_t i = 0; i < rows; ++i) {
      if (row[i].empty()) continue;
      const int64_t last = (row[i].end - 1 - seen.begin) / kGroup;
      for (int64_t g = (row[i].begin - seen.begin) / kGroup; g <= last; ++g)
        key_group[g] = key_group[g].joined({i, i + 1});
    }
  }
};

// scores [rows, keys] = a [rows, depth] b [depth, keys], where a group of rows sees keys.
void score_product(const TileView& view, Matrix scores, Matrix a, Matrix b, int64_t depth) {
  const int64_t panel = kPanel * lanes();
  for (int64_t key = view.seen.begin / panel * panel; key < view.seen.end; key += panel)
    for (int64_t i = 0; i < view.rows; i += kGroup) {
      const Interval keys = padded(view.group[i / kGroup]).intersected({key, key + panel});
      if (keys.empty()) continue;
      const int64_t rows = std::min<int64_t>(kGroup, view.rows - i);
      const ProductKernel kernel = kernels<false, false>[size_t(rows - 1)][size_t(keys.size() / lanes() - 1)];
      kernel(scores.at(i, keys.begin), a.at(i, 0), b.at(0, keys.begin), depth);
    }
}

// c [rows, columns] += a b, where the rows of c from kGroup * i on take only the inner indices depth[i].
template <bool kTransposed>
void add_product(Matrix c, Matrix a, Matrix b, int64_t rows, int64_t columns, const Interval* depth) {
  const int64_t vectors = vectors_of(columns);
  for (int64_t j = 0; j < vectors; j += kPanel)
    for (int64_t i = 0; i < rows; i += kGroup) {
      const Interval inner = depth[i / kGroup];
      if (inner.empty()) continue;
      const int64_t height = std::min<int64_t>(kGroup, rows - i), width = std::min<int64_t>(kPanel, vectors - j);
      const Matrix of_a = kTransposed ? a.at(inner.begin, i) : a.at(i, inner.begin);
      const ProductKernel kernel = kernels<kTransposed, true>[size_t(height - 1)][size_t(width - 1)];
      kernel(c.at(i, j * lanes()), of_a, b.at(inner.begin, j * lanes()), inner.size());
    }
}

// Rows [n, columns] as fp32, times `factor`, zeros up to a whole vector. Whether all values are finite.
template <class T>
bool pack_rows(Matrix to, const T* from, int64_t stride, int64_t n, int64_t columns, float factor) {
  Vec poison = zero();
  for (int64_t i = 0; i < n; ++i)
    for_vectors(size_t(columns), [&](size_t j, auto part) HWY_ATTR {
      const Vec x = hn::Mul(load(from + i * stride + j, part), splat(factor));
      poison = hn::MulAdd(x, zero(), poison);  // NaN once x is NaN or infinite
      hn::Store(x, F32(), to.row(i) + j);
    });
  return sum_of(poison) == 0;
}

// to [columns, n] = from [n, columns] transposed, four rows at a time; `from` is readable up to multiples of four rows
// and whole vectors.
void transpose(Matrix to, Matrix from, int64_t n, int64_t columns) {
  const F32 f32;
  HWY_ALIGN float columns_of_four[4 * HWY_MAX_BYTES / sizeof(float)];
  for (int64_t i = 0; i < n; i += 4)
    for (int64_t j = 0; j < columns; j += lanes()) {
      const auto row = [&](int64_t next) HWY_ATTR { return hn::Load(f32, from.row(i + next) + j); };
      hn::StoreInterleaved4(row(0), row(1), row(2), row(3), f32, columns_of_four);
      const int64_t count = std::min(lanes(), columns - j);
      for (int64_t c = 0; c < count; ++c) std::memcpy(to.row(j + c) + i, columns_of_four + 4 * c, 4 * sizeof(float));
    }
}

// e^t for t <= 88 to 3e-7 of itself; 0 below -87.7, NaN for NaN. 2^(t / ln 2) = 2^n 2^f with f in [-1/2, 1/2] and a
// polynomial of least relative error for 2^f.
HWY_INLINE Vec fast_exp(Vec t) {
  const Vec shift = splat(12582912.f + 127.f);  // 1.5 * 2^23: adding it rounds to an integer, here n + 127
  const Vec log2_e = splat(1.44269504f);
  const Vec x = hn::Max(splat(-88.02f), t);
  const Vec shifted = hn::MulAdd(x, log2_e, shift);
  const Vec power = hn::BitCast(F32(), hn::ShiftLeft<23>(hn::BitCast(U32(), shifted)));
  const Vec f = hn::MulSub(x, log2_e, hn::Sub(shifted, shift));
  Vec p = hn::MulAdd(splat(0.00132764720f), f, splat(0.00967554134f));
  p = hn::MulAdd(p, f, splat(0.0555071327f));
  p = hn::MulAdd(p, f, splat(0.240221197f));
  p = hn::MulAdd(p, f, splat(0.693146967f));
  p = hn::MulAdd(p, f, splat(1.f));
  return hn::Mul(p, power);
}

// Overwrites what a row does not see within whole vectors of keys.
HWY_INLINE void hide(float* row, Interval whole, Interval seen, float value) {
  std::fill(row + whole.begin, row + seen.begin, value);
  std::fill(row + seen.end, row + whole.end, value);
}

template <class F>
HWY_INLINE void for_keys(Interval keys, const F& f) {
  for (int64_t j = keys.begin; j < keys.end; j += lanes()) f(j);
}

// The running softmax of up to kBlockRows rows (Milakov & Gimelshein 2018).
struct Softmax {
  float softcap = 0;
  bool want_entropy = false;
  float largest = 0;                // |score| before the soft-cap
  float maximum[kBlockRows] = {};   // of the scores so far, after the soft-cap
  float sum[kBlockRows] = {};       // of exp(score - maximum)
  float weighted[kBlockRows] = {};  // of exp(score - maximum) * (score - maximum), for the entropy
};

HWY_INLINE Vec capped(Vec score, float softcap) {
  return hn::Mul(splat(softcap), tanh(hn::Div(score, splat(softcap))));
}

// Soft-caps a row of scores in place and returns its maximum. What is hidden holds a visible score.
HWY_INLINE float row_maximum(float* row, Interval keys, float softcap, Vec& largest) {
  const F32 f32;
  Vec maximum = hn::Load(f32, row + keys.begin), minimum = maximum;
  for_keys(keys, [&](int64_t j) HWY_ATTR {
    const Vec s = hn::Load(f32, row + j);
    maximum = hn::Max(maximum, s);
    minimum = hn::Min(minimum, s);
  });
  largest = hn::Max(largest, hn::Max(maximum, hn::Neg(minimum)));
  if (softcap == 0) return max_of(maximum);
  for_keys(keys, [&](int64_t j) HWY_ATTR { hn::Store(capped(hn::Load(f32, row + j), softcap), f32, row + j); });
  return max_of(capped(maximum, softcap));
}

// scores of row i become exp(score - maximum); sums and the output so far are brought to the new maximum.
HWY_INLINE void softmax_row(Softmax& state, int64_t i, float* row, Interval keys, Interval seen, Vec& largest,
                            float* out, int64_t columns) {
  const F32 f32;
  hide(row, keys, seen, row[seen.begin]);
  const float old_maximum = state.maximum[i];
  const float maximum = std::max(old_maximum, row_maximum(row, keys, state.softcap, largest));
  hide(row, keys, seen, -HUGE_VALF);
  const Vec shift = splat(maximum);
  Vec sum = zero(), weighted = zero();
  if (state.want_entropy) {
    for_keys(keys, [&](int64_t j) HWY_ATTR {
      const Vec t = hn::Max(hn::Sub(hn::Load(f32, row + j), shift), splat(-100.f));
      weighted = hn::MulAdd(fast_exp(t), t, weighted);
    });
  }
  for_keys(keys, [&](int64_t j) HWY_ATTR {
    const Vec p = fast_exp(hn::Sub(hn::Load(f32, row + j), shift));
    sum = hn::Add(sum, p);
    hn::Store(p, f32, row + j);
  });
  if (maximum != old_maximum) {
    const Vec factor = fast_exp(hn::Sub(splat(old_maximum), shift));
    const float scale = hn::GetLane(factor);
    if (state.sum[i] > 0) state.weighted[i] = scale * (state.weighted[i] + state.sum[i] * (old_maximum - maximum));
    state.sum[i] *= scale;
    state.maximum[i] = maximum;
    for_vectors(size_t(columns),
                [&](size_t j, auto) HWY_ATTR { hn::Store(hn::Mul(factor, hn::Load(f32, out + j)), f32, out + j); });
  }
  state.sum[i] += sum_of(sum);
  state.weighted[i] += sum_of(weighted);
}

// Scores of the tile's rows to unnormalised probabilities; out [rows, columns] is the output so far.
void softmax_rows(Softmax& state, const TileView& view, int64_t first, Matrix scores, Matrix out, int64_t columns) {
  Vec largest = splat(state.largest);
  for (int64_t i = 0; i < view.rows; ++i) {
    const Interval keys = padded(view.group[i / kGroup]), seen = view.row[i];
    if (seen.empty()) {
      std::fill(scores.row(i) + keys.begin, scores.row(i) + keys.end, 0.f);
    } else {
      softmax_row(state, first + i, scores.row(i), keys, seen, largest, out.row(i), columns);
    }
  }
  state.largest = max_of(largest);
}

// Scores of the tile's rows become p = exp(score - log_sum_exp), dp becomes dL/dscore = p (dp - dot), before the
// soft-cap. log_sum_exp and dot are those of the tile's rows.
void softmax_gradient_rows(const TileView& view, Matrix scores, Matrix dp, const float* log_sum_exp, const float* dot,
                           float softcap) {
  const F32 f32;
  const Vec inverse_cap = splat(softcap == 0 ? 0.f : 1 / softcap);
  for (int64_t i = 0; i < view.rows; ++i) {
    const Interval keys = padded(view.group[i / kGroup]);
    const Vec shift = splat(log_sum_exp[i]), mean = splat(dot[i]);
    float *s_row = scores.row(i), *dp_row = dp.row(i);
    for_keys(keys, [&](int64_t j) HWY_ATTR {
      Vec s = hn::Load(f32, s_row + j), slope = splat(1.f);
      if (softcap != 0) {
        s = capped(s, softcap);
        const Vec ratio = hn::Mul(s, inverse_cap);
        slope = hn::NegMulAdd(ratio, ratio, slope);
      }
      const Vec p = fast_exp(hn::Sub(s, shift));
      hn::Store(p, f32, s_row + j);
      hn::Store(hn::Mul(hn::Mul(p, slope), hn::Sub(hn::Load(f32, dp_row + j), mean)), f32, dp_row + j);
    });
    hide(s_row, view.seen, view.row[i], 0);  // a group of keys takes rows whose own group does not see it
    hide(dp_row, view.seen, view.row[i], 0);
  }
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
