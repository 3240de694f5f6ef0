// Sums of what telemetry samples beyond attention's own statistics, made where it lies, so that a telemetry step waits
// for its host no more than another one does.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// Of which fourth powers are summed: they stay within fp32 from |x| of 1e-4 to 1e13.
constexpr double kOfFourthPowers = 0x1p-16;
// sums [4] fp32 += elements, those with |x| > outlier, sum of x^2, sum of (x * kOfFourthPowers)^4. x dense, fp32 or
// bf16.
void add_moments(Tensor sums, ConstTensor x, float outlier);

// Queries and keys of the first sequence: the queries of rows t = i T / queries - 1, i = 1 ... queries. Of the n keys
// that one sees up to its own row every s-th, s = n / most_keys rounded up, from distance (i - 1) s / queries on: so
// together they look at all distances, near and far.
struct ParallelSample {
  ConstTensor q;          // [T, H, d], dense, fp32 or bf16
  ConstTensor k;          // [T, G, d], the same type
  ConstTensor first_key;  // [T] int32: the first key that a row may see; undefined = 0
  int64_t window = 0;     // keys that a row sees, its own counted; 0 = no limit
  int64_t queries = 1;
  int64_t most_keys = 1;  // of a query
  float least = 0;
};

// parallel [H] fp32 += pairs of a query and a key with |cos(q, k)| > least; pairs [1] fp32 += pairs looked at, of each
// head.
void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& sample);

}  // namespace keel::ops
