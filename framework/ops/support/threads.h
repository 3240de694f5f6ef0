// Static partitions of loops over OpenMP threads. How a loop is cut depends on its size and the thread count only, so
// that sums made part by part have the same bits in every run.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace keel::ops {

// How many parts n rows are worth, at least `grain` rows each: between 1 and the thread count.
inline int parts_of(int64_t n, int64_t grain) {
  return int(std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, omp_get_max_threads()));
}

// f(part, begin, end) for contiguous ranges of [0, n), side by side. f must not throw.
template <class F>
void for_parts(int64_t n, int parts, const F& f) {
#pragma omp parallel for schedule(static, 1) num_threads(parts) if (parts > 1)
  for (int part = 0; part < parts; ++part) f(part, n * part / parts, n * (part + 1) / parts);
}

}  // namespace keel::ops
