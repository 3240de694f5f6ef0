// What telemetry samples beyond attention's own statistics (models/decoder/probe.h), so that a telemetry step waits for
// its host no more than another one does.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// sums [4] fp32 += elements, those with |x| > outlier, sum of x^2, sum of x^4. x dense, fp32 or bf16.
void add_moments(Tensor sums, ConstTensor x, float outlier);

// parallel [H] fp32 += pairs of a query and a key with |cos(q, k)| > least, of one sequence q [T, H, d], k [T, G, d],
// dense, fp32 or bf16: the queries of rows i * T / queries - 1, i = 1 ... queries, each against the keys up to its row.
void add_parallel_pairs(Tensor parallel, ConstTensor q, ConstTensor k, int64_t queries, float least);

}  // namespace keel::ops
