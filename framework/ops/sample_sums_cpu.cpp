#include "framework/ops/sample_sums_cpu.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/support/partial_sums.h"
#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops::cpu {
namespace {

// Keys last, last - stride, ..., as many as `count`.
struct Seen {
  int64_t last, stride, count;
};
// By the query number i of row t.
Seen seen_by(const ParallelSample& x, int64_t i, int64_t t) {
  int64_t begin = x.first_key.defined() ? x.first_key.as<int32_t>()[t] : 0;
  if (x.window > 0) begin = std::max(begin, t - x.window + 1);
  const int64_t visible = t + 1 - begin, stride = std::max<int64_t>(1, (visible + x.most_keys - 1) / x.most_keys);
  const int64_t last = t - (i - 1) * stride / x.queries;
  return {last, stride, last < begin ? 0 : (last - begin) / stride + 1};
}

template <class T>
float dot(const T* a, const T* b, int64_t d) {
  float sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}

// Those of one KV head that a query looks at, with their lengths.
template <class T>
struct Keys {
  const T* data;
  int64_t stride, d;
  Seen seen;
  float* lengths;

  const T* row(int64_t n) const { return data + (seen.last - n * seen.stride) * stride; }
  void measure() const {
    for (int64_t n = 0; n < seen.count; ++n) lengths[n] = std::sqrt(dot(row(n), row(n), d));
  }
};

template <class T>
int64_t parallel_keys(const T* query, const Keys<T>& keys, float least) {
  const float limit = least * std::sqrt(dot(query, query, keys.d));
  int64_t parallel = 0;
  for (int64_t n = 0; n < keys.seen.count; ++n)
    parallel += std::abs(dot(query, keys.row(n), keys.d)) > limit * keys.lengths[n];
  return parallel;
}

struct Moments {
  double outliers = 0, squares = 0, fourth_powers = 0;
};

template <class T>
Moments moments_of(const T* begin, const T* end, float outlier) {
  Moments sums;
  for (const T* x = begin; x < end; ++x) {
    const double value = *x, square = value * value;
    sums.outliers += std::abs(value) > outlier;
    sums.squares += square;
    sums.fourth_powers += square * square;
  }
  return sums;
}

}  // namespace

void add_moments(Tensor sums, ConstTensor x, float outlier) {
  constexpr int kChunks = 64;  // fixed: the sums do not depend on the thread count
  const int64_t n = x.elements();
  Moments of_chunks[kChunks];
  dispatch_float(x.dtype(), [&]<class T>() {
    for_parts(kChunks, parts_of(n, 16384), [&](int, int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk)
        of_chunks[chunk] = moments_of(x.as<T>() + n * chunk / kChunks, x.as<T>() + n * (chunk + 1) / kChunks, outlier);
    });
  });
  Moments all;
  for (const Moments& chunk : of_chunks) {
    all.outliers += chunk.outliers;
    all.squares += chunk.squares;
    all.fourth_powers += chunk.fourth_powers;
  }
  float* to = sums.as<float>();
  const double scale = std::pow(kOfFourthPowers, 4);
  for (double part : {double(n), all.outliers, all.squares, all.fourth_powers * scale}) *to++ += float(part);
}

void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& x) {
  const ConstTensor &q = x.q, &k = x.k;
  const int64_t rows = q.size(0), H = q.size(1), G = k.size(1), d = q.size(2);
  thread_local std::vector<float> memory;
  float* lengths = grown(memory, size_t(std::min(rows, x.most_keys)));
  dispatch_float(q.dtype(), [&]<class T>() {
    for (int64_t i = 1; i <= x.queries; ++i) {
      const int64_t t = i * rows / x.queries - 1;
      const Seen seen = seen_by(x, i, t);
      pairs.as<float>()[0] += float(seen.count);
      for (int64_t g = 0; g < G; ++g) {
        const Keys<T> keys{k.as<T>() + g * d, G * d, d, seen, lengths};
        keys.measure();
        for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h)
          parallel.as<float>()[h] += float(parallel_keys(q.as<T>() + (t * H + h) * d, keys, x.least));
      }
    }
  });
}

}  // namespace keel::ops::cpu
