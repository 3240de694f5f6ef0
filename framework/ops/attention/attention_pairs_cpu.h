// Products of bf16 pairs by one instruction (AVX512_BF16): what attention multiplies its bf16 tiles with where the CPU
// has it. Sums are fp32; values below 2^-126 count as 0.
#pragma once

#include <cstdint>

namespace keel::ops::cpu {

// Rows of scratch memory; `at` is an element of it.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;

  T* row(int64_t i) const { return data + i * stride; }
  Matrix at(int64_t i, int64_t j) const { return {data + i * stride + j, stride}; }
};

// Two bf16 values that follow one another along the inner dimension of a product, the first in the lower half.
using Pair = uint32_t;

// Whether this CPU, and oneDNN's limit on its instructions, allow the calls below.
bool has_pair_products();

constexpr int kPairRows = 8;     // of c, in registers beside
constexpr int kPairVectors = 2;  // two of b and one of a
constexpr int64_t kPairLanes = 16;

// c [rows, vectors of 16] = scale * (c +) a b with a [rows, pairs], or a stored as [pairs, rows], and b [pairs, 16 *
// vectors].
using PairProduct = void (*)(Matrix<float> c, Matrix<Pair> a, Matrix<Pair> b, int64_t pairs, float scale);
// 1 <= rows <= kPairRows, 1 <= vectors <= kPairVectors. `scale` is for products that do not accumulate.
PairProduct pair_product(bool transposed, bool accumulate, int64_t rows, int64_t vectors);

// to[i] = the pair of from[2 i] and from[2 i + 1], rounded to nearest even; n values, a multiple of 16.
void narrow(Pair* to, const float* from, int64_t n);
// to[j] = the pair of first[j] and second[j], times `factor`; n values each, a multiple of 16.
void narrow_rows(Pair* to, const float* first, const float* second, int64_t n, float factor);

}  // namespace keel::ops::cpu
