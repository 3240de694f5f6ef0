#include <immintrin.h>

#include <array>
#include <utility>

#include "framework/ops/attention/attention_pairs_cpu.h"
#include "framework/ops/matmul/matmul.h"

// Highway (1.0 in Debian 12) has no name for this instruction.
#define KEEL_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace keel::ops::cpu {
namespace {

KEEL_PAIRS inline __m512bh splat(Pair pair) {
  return (__m512bh)_mm512_set1_epi32(int(pair));
}
KEEL_PAIRS inline __m512bh load(const Pair* pairs) {
  return (__m512bh)_mm512_loadu_si512(pairs);
}
using Words = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

// 16 values, rounded, in the lower halves.
KEEL_PAIRS inline Words narrowed(__m512 values) {
  return __builtin_convertvector((Halves)_mm512_cvtneps_pbh(values), Words);
}

template <bool kTransposed, bool kAccumulate, int kRows, int kVectors>
KEEL_PAIRS void product(Matrix<float> c, Matrix<Pair> a, Matrix<Pair> b, int64_t pairs, float scale) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j)
      sum[i][j] = kAccumulate ? _mm512_loadu_ps(c.row(i) + j * kPairLanes) : _mm512_setzero_ps();
  const Pair *a_at = a.data, *b_at = b.data;
  for (int64_t k = 0; k < pairs; ++k) {
    __m512bh of_b[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) of_b[j] = load(b_at + j * kPairLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512bh of_a = splat(kTransposed ? a_at[i] : a_at[i * a.stride]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], of_a, of_b[j]);
    }
    a_at += kTransposed ? a.stride : 1;
    b_at += b.stride;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      if (!kAccumulate) sum[i][j] = _mm512_mul_ps(sum[i][j], _mm512_set1_ps(scale));
      _mm512_storeu_ps(c.row(i) + j * kPairLanes, sum[i][j]);
    }
}

template <bool kTransposed, bool kAccumulate, int... kRows>
constexpr auto products_of(std::integer_sequence<int, kRows...>) {
  return std::array<std::array<PairProduct, kPairVectors>, kPairRows>{std::array<PairProduct, kPairVectors>{
      product<kTransposed, kAccumulate, kRows + 1, 1>, product<kTransposed, kAccumulate, kRows + 1, 2>}...};
}
// products<...>[rows - 1][vectors - 1]
template <bool kTransposed, bool kAccumulate>
constexpr auto products = products_of<kTransposed, kAccumulate>(std::make_integer_sequence<int, kPairRows>());

}  // namespace

bool has_pair_products() {
  static const bool has = bf16_products_are_native() && __builtin_cpu_supports("avx512bf16");
  return has;
}

PairProduct pair_product(bool transposed, bool accumulate, int64_t rows, int64_t vectors) {
  const auto& kernels = transposed ? (accumulate ? products<true, true> : products<true, false>)
                                   : (accumulate ? products<false, true> : products<false, false>);
  return kernels[size_t(rows - 1)][size_t(vectors - 1)];
}

KEEL_PAIRS void narrow(Pair* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kPairLanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
}

KEEL_PAIRS void narrow_rows(Pair* to, const float* first, const float* second, int64_t n, float factor) {
  const __m512 times = _mm512_set1_ps(factor);
  for (int64_t j = 0; j < n; j += kPairLanes) {
    const Words low = narrowed(_mm512_mul_ps(_mm512_loadu_ps(first + j), times));
    const Words high = narrowed(_mm512_mul_ps(_mm512_loadu_ps(second + j), times));
    _mm512_storeu_si512(to + j, (__m512i)(low | high << 16));
  }
}

}  // namespace keel::ops::cpu
