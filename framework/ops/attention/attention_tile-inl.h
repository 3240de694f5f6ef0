// The arithmetic of one tile of attention: small matrix products on tiles of fp32 or of bf16 pairs, softmax rows and
// their gradient. Included once per target after simd-inl.h, hence no include guard.
//
// Masks are intervals: a row of a tile sees the keys [begin, end). Products skip what a group of rows does not see, and
// a score outside its row's interval is overwritten (by -infinity, or its gradient by 0), never added to.
#include <array>
#include <utility>

#include "framework/ops/attention/attention_pairs_cpu.h"
#include "framework/ops/attention/attention_plan.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {
using cpu::Interval;
using cpu::kBlockRows;
using cpu::kTileKeys;
using cpu::Matrix;
using cpu::Pair;

// Rows of c that the kernel keeps in registers, beside two vectors of b and one of a: 16 registers hold 6 rows, 32
// hold 8.
constexpr int kGroup = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? 8 : 6;
constexpr int kPanel = 2;  // vectors
static_assert(kBlockRows % kGroup == 0);
// Vectors and groups as the products of pairs have them.
constexpr bool kPairsFit =
    hn::MaxLanes(F32()) == cpu::kPairLanes && kGroup == cpu::kPairRows && kPanel == cpu::kPairVectors;

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

// How many values along the inner dimension of a product one word holds, and how many words hold n values.
template <class Word>
constexpr int64_t kValuesOf = std::is_same_v<Word, Pair> ? 2 : 1;
template <class Word>
constexpr int64_t words_of(int64_t n) {
  return (n + kValuesOf<Word> - 1) / kValuesOf<Word>;
}
// The words that hold these values.
template <class Word>
HWY_INLINE Interval words_of(Interval values) {
  return {values.begin / kValuesOf<Word>, words_of<Word>(values.end)};
}

// c [kRows, kVectors vectors] = (c +) a b with a [kRows, depth], or a stored as [depth, kRows].
template <bool kTransposed, bool kAccumulate, int kRows, int kVectors>
void product_kernel(Matrix<float> c, Matrix<float> a, Matrix<float> b, int64_t depth) {
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

using ProductKernel = void (*)(Matrix<float>, Matrix<float>, Matrix<float>, int64_t);
template <bool kTransposed, bool kAccumulate, int... kRows>
constexpr auto kernels_of(std::integer_sequence<int, kRows...>) {
  return std::array<std::array<ProductKernel, kPanel>, kGroup>{
      std::array<ProductKernel, kPanel>{product_kernel<kTransposed, kAccumulate, kRows + 1, 1>,
                                        product_kernel<kTransposed, kAccumulate, kRows + 1, 2>}...};
}
// kernels<...>[rows - 1][vectors - 1]
template <bool kTransposed, bool kAccumulate>
constexpr auto kernels = kernels_of<kTransposed, kAccumulate>(std::make_integer_sequence<int, kGroup>());

// Of a product that one kernel makes.
struct Extent {
  int64_t rows, vectors, depth;
};

// c [rows, vectors] = (c +) a b over `depth` words of fp32 or of bf16 pairs. Only without accumulation: times `scale`,
// which tiles of fp32 have in a.
template <bool kTransposed, bool kAccumulate>
HWY_INLINE void multiply(Matrix<float> c, Matrix<float> a, Matrix<float> b, Extent n, float) {
  kernels<kTransposed, kAccumulate>[size_t(n.rows - 1)][size_t(n.vectors - 1)](c, a, b, n.depth);
}
template <bool kTransposed, bool kAccumulate>
HWY_INLINE void multiply(Matrix<float> c, Matrix<Pair> a, Matrix<Pair> b, Extent n, float scale) {
  cpu::pair_product(kTransposed, kAccumulate, n.rows, n.vectors)(c, a, b, n.depth, scale);
}

// What the rows of a tile see of its keys.
struct TileView {
  int64_t rows = 0;
  int64_t first_key = 0;                  // of the tile
  Interval seen;                          // by any row
  Interval row[kBlockRows];               // by each; empty at seen.begin where it sees nothing
  Interval group[kBlockRows / 6];         // by any of a group of kGroup rows
  Interval key_group[kTileKeys / 6 + 1];  // the rows that see any of kGroup keys, counted from seen.begin

  TileView(const cpu::AttentionPlan& plan, const cpu::AttentionBlock& block, Interval keys)
      : rows(block.rows), first_key(keys.begin) {
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

template <class Word>
struct Factors {
  Matrix<Word> a;  // [rows, depth]
  Matrix<Word> b;  // [depth, columns]
  int64_t depth;   // in words
};

// scores [rows, keys] = scale * a b, where a group of rows sees keys.
template <class Word>
void score_product(const TileView& view, Matrix<float> scores, const Factors<Word>& of, float scale) {
  const int64_t panel = kPanel * lanes();
  for (int64_t key = view.seen.begin / panel * panel; key < view.seen.end; key += panel)
    for (int64_t i = 0; i < view.rows; i += kGroup) {
      const Interval keys = padded(view.group[i / kGroup]).intersected({key, key + panel});
      if (keys.empty()) continue;
      const int64_t rows = std::min<int64_t>(kGroup, view.rows - i);
      multiply<false, false>(scores.at(i, keys.begin), of.a.at(i, 0), of.b.at(0, keys.begin),
                             {rows, keys.size() / lanes(), of.depth}, scale);
    }
}

struct Size {
  int64_t rows, columns;
};

// c [rows, columns] += a b, where the rows of c from kGroup * i on take only the inner values depth[i]. Pairs whose
// other value is outside take it too: it must be 0 in a, and finite in b.
template <bool kTransposed, class Word>
void add_product(Matrix<float> c, Matrix<Word> a, Matrix<Word> b, Size size, const Interval* depth) {
  const int64_t vectors = vectors_of(size.columns);
  for (int64_t j = 0; j < vectors; j += kPanel)
    for (int64_t i = 0; i < size.rows; i += kGroup) {
      const Interval inner = words_of<Word>(depth[i / kGroup]);
      if (inner.empty()) continue;
      const int64_t height = std::min<int64_t>(kGroup, size.rows - i), width = std::min<int64_t>(kPanel, vectors - j);
      const Matrix<Word> of_a = kTransposed ? a.at(inner.begin, i) : a.at(i, inner.begin);
      multiply<kTransposed, true>(c.at(i, j * lanes()), of_a, b.at(inner.begin, j * lanes()),
                                  {height, width, inner.size()}, 1.f);
    }
}

// Rows of one head lie far apart, where no hardware prefetcher follows: they are asked for this many rows ahead.
constexpr int64_t kRowsAhead = 8;

// Rows [n, columns] as fp32, times `factor`, zeros up to a whole vector. Whether all values are finite.
template <class T>
bool pack_rows(Matrix<float> to, Matrix<const T> from, int64_t n, int64_t columns, float factor) {
  Vec poison = zero();
  for (int64_t i = 0; i < n; ++i) {
    const T* ahead = from.row(std::min(i + kRowsAhead, n - 1));
    for_vectors(size_t(columns), [&](size_t j, auto part) HWY_ATTR {
      hwy::Prefetch(ahead + j);
      const Vec x = hn::Mul(load(from.row(i) + j, part), splat(factor));
      poison = hn::Or(poison, hn::Mul(x, zero()));  // NaN once x is NaN or infinite
      hn::Store(x, F32(), to.row(i) + j);
    });
  }
  return sum_of(poison) == 0;
}

// Rows [n, columns] as they are, pairs of neighbours in a row; zeros up to whole vectors, and up to `height` rows.
// Whether all values are finite.
inline bool copy_rows(Matrix<Pair> to, Matrix<const bf16> from, int64_t n, int64_t height, int64_t columns) {
  const U32 u;
  const int64_t width = vectors_of(words_of<Pair>(columns)) * lanes();
  auto carried = hn::Zero(u);  // into the bit above an exponent whose bits are all 1
  for (int64_t i = 0; i < n; ++i) {
    const bf16* ahead = from.row(std::min(i + kRowsAhead, n - 1));
    Pair* row = to.row(i);
    row[(columns - 1) / 2] = 0;
    std::memcpy(row, from.row(i), size_t(columns) * sizeof(bf16));
    std::fill(row + words_of<Pair>(columns), row + width, 0);
    for (int64_t j = 0; j < width; j += lanes()) {
      hwy::Prefetch(ahead + 2 * j);
      const auto exponents = hn::And(hn::LoadU(u, row + j), hn::Set(u, 0x7f807f80u));
      carried = hn::Or(carried, hn::Add(exponents, hn::Set(u, 0x00800080u)));
    }
  }
  for (int64_t i = n; i < height; ++i) std::fill_n(to.row(i), width, 0);
  return hn::AllFalse(u, hn::TestBit(carried, hn::Set(u, 0x8000u))) &&
         hn::AllFalse(u, hn::TestBit(carried, hn::Set(u, 0x80000000u)));
}

// to [n / 2, columns] from rows [n, columns]: pairs of neighbours in a column. n is even.
inline void zip_rows(Matrix<Pair> to, Matrix<Pair> rows, int64_t n, int64_t columns) {
  const U32 u;
  const auto values = [&](int64_t i, int64_t j) HWY_ATTR {
    return hn::PromoteTo(u, hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(rows.row(i)) + j));
  };
  for (int64_t i = 0; i < n; i += 2)
    for (int64_t j = 0; j < vectors_of(columns) * lanes(); j += lanes())
      hn::StoreU(hn::Or(values(i, j), hn::ShiftLeft<16>(values(i + 1, j))), u, to.row(i / 2) + j);
}

// to [columns, n] = from [n, columns] transposed, four rows at a time. Both are accessible up to whole vectors of
// columns, and n is a multiple of four.
template <class Word>
void transpose(Matrix<Word> to, Matrix<Word> from, int64_t n, int64_t columns) {
  const hn::ScalableTag<Word> tag;
  constexpr int64_t kStep = hn::MaxLanes(hn::ScalableTag<Word>());
  HWY_ALIGN Word fours[4 * kStep];
  for (int64_t i = 0; i < n; i += 4)
    for (int64_t j = 0; j < columns; j += kStep) {
      const Word* at = from.row(i) + j;
      hn::StoreInterleaved4(hn::Load(tag, at), hn::Load(tag, at + from.stride), hn::Load(tag, at + 2 * from.stride),
                            hn::Load(tag, at + 3 * from.stride), tag, fours);
      HWY_UNROLL(16)
      for (int64_t c = 0; c < kStep; ++c) std::memcpy(to.row(j + c) + i, fours + 4 * c, 4 * sizeof(Word));
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

// The maximum of a row of scores, soft-capped in place. What is hidden holds a visible score.
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

// The sum of exp(score - maximum) * (score - maximum).
HWY_INLINE float weighted_sum(const float* row, Interval keys, float maximum) {
  Vec sum = zero();
  for_keys(keys, [&](int64_t j) HWY_ATTR {
    const Vec t = hn::Max(hn::Sub(hn::Load(F32(), row + j), splat(maximum)), splat(-100.f));
    sum = hn::MulAdd(fast_exp(t), t, sum);
  });
  return sum_of(sum);
}

// Scores become exp(score - maximum); their sum.
HWY_INLINE float exponentials(float* row, Interval keys, float maximum) {
  const F32 f32;
  const Vec shift = splat(maximum);
  Vec sum = zero();
  for_keys(keys, [&](int64_t j) HWY_ATTR {
    const Vec p = fast_exp(hn::Sub(hn::Load(f32, row + j), shift));
    sum = hn::Add(sum, p);
    hn::Store(p, f32, row + j);
  });
  return sum_of(sum);
}

// Brings the sums of row i, and its output so far, to a new maximum.
HWY_INLINE void raise_maximum(Softmax& state, int64_t i, float maximum, float* out, int64_t columns) {
  const float rise = state.maximum[i] - maximum;
  const Vec factor = fast_exp(splat(rise));
  const float scale = hn::GetLane(factor);
  state.maximum[i] = maximum;
  if (state.sum[i] == 0) return;  // the first keys of this row
  state.weighted[i] = scale * (state.weighted[i] + state.sum[i] * rise);
  state.sum[i] *= scale;
  for_vectors(size_t(columns),
              [&](size_t j, auto) HWY_ATTR { hn::Store(hn::Mul(factor, hn::Load(F32(), out + j)), F32(), out + j); });
}

// Scores of the tile's rows to unnormalised probabilities; out [rows, columns] is the output so far. All maxima come
// first: rows do not wait for one another.
void softmax_rows(Softmax& state, const TileView& view, Matrix<float> scores, Matrix<float> out, int64_t columns) {
  Vec largest = splat(state.largest);
  for (int64_t i = 0; i < view.rows; ++i) {
    const Interval keys = padded(view.group[i / kGroup]), seen = view.row[i];
    float* row = scores.row(i);
    if (seen.empty()) continue;
    hide(row, keys, seen, row[seen.begin]);
    const float maximum = row_maximum(row, keys, state.softcap, largest);
    hide(row, keys, seen, -HUGE_VALF);
    if (maximum > state.maximum[i]) raise_maximum(state, i, maximum, out.row(i), columns);
  }
  for (int64_t i = 0; i < view.rows; ++i) {
    const Interval keys = padded(view.group[i / kGroup]), seen = view.row[i];
    float* row = scores.row(i);
    if (seen.empty()) {
      std::fill(row + keys.begin, row + keys.end, 0.f);
      continue;
    }
    const float maximum = state.maximum[i];
    if (state.want_entropy) state.weighted[i] += weighted_sum(row, keys, maximum);
    state.sum[i] += exponentials(row, keys, maximum);
  }
  state.largest = max_of(largest);
}

// What backward knows of a block's rows.
struct SoftmaxGradient {
  float softcap;
  const float *log_sum_exp, *dot;
};

// Scores of the tile's rows become p = exp(score - log_sum_exp), dp becomes dL/dscore = p (dp - dot), before the
// soft-cap.
void softmax_gradient_rows(const SoftmaxGradient& of, const TileView& view, Matrix<float> scores, Matrix<float> dp) {
  const F32 f32;
  const float softcap = of.softcap;
  const Vec inverse_cap = splat(softcap == 0 ? 0.f : 1 / softcap);
  for (int64_t i = 0; i < view.rows; ++i) {
    const Interval keys = padded(view.group[i / kGroup]);
    const Vec shift = splat(of.log_sum_exp[i]), mean = splat(of.dot[i]);
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
