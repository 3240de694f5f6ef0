#include "framework/ops/sample_sums_cpu.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/partial_sums.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops::cpu {
namespace {

// Keys [begin, end).
struct Seen {
  int64_t begin, end;
};
Seen seen_by(const ParallelSample& x, int64_t row) {
  int64_t begin = x.first_key.defined() ? x.first_key.as<int32_t>()[row] : 0;
  if (x.window > 0) begin = std::max(begin, row - x.window + 1);
  return {begin, row + 1};
}

template <class T>
float dot(const T* a, const T* b, int64_t d) {
  float sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}

// Of one head.
template <class T>
struct Keys {
  const T* data;
  int64_t stride, d;
  const float* lengths;

  const T* row(int64_t j) const { return data + j * stride; }
};

template <class T>
int64_t parallel_keys(const T* query, const Keys<T>& keys, Seen seen, float least) {
  const float limit = least * std::sqrt(dot(query, query, keys.d));
  int64_t parallel = 0;
  for (int64_t j = seen.begin; j < seen.end; ++j)
    parallel += std::abs(dot(query, keys.row(j), keys.d)) > limit * keys.lengths[j];
  return parallel;
}

}  // namespace

void add_moments(Tensor sums, ConstTensor x, float outlier) {
  double outliers = 0, squares = 0, fourth_powers = 0;
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* values = x.as<T>();
    for (int64_t i = 0; i < x.elements(); ++i) {
      const double value = values[i], square = value * value;
      outliers += std::abs(value) > outlier;
      squares += square;
      fourth_powers += square * square;
    }
  });
  float* to = sums.as<float>();
  const double scale = std::pow(kOfFourthPowers, 4);
  for (double part : {double(x.elements()), outliers, squares, fourth_powers * scale}) *to++ += float(part);
}

void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& x) {
  const auto& [q, k, first_key, window, queries, least] = x;
  const int64_t rows = q.size(0), H = q.size(1), G = k.size(1), d = q.size(2);
  thread_local std::vector<float> memory;
  float* lengths = grown(memory, size_t(rows));  // of one head's keys
  dispatch_float(q.dtype(), [&]<class T>() {
    for (int64_t g = 0; g < G; ++g) {
      const Keys<T> keys{k.as<T>() + g * d, G * d, d, lengths};
      for (int64_t t = 0; t < rows; ++t) lengths[t] = std::sqrt(dot(keys.row(t), keys.row(t), d));
      for (int64_t h = g * (H / G); h < (g + 1) * (H / G); ++h)
        for (int64_t i = 1; i <= queries; ++i) {
          const int64_t t = i * rows / queries - 1;
          const T* query = q.as<T>() + (t * H + h) * d;
          parallel.as<float>()[h] += float(parallel_keys(query, keys, seen_by(x, t), least));
        }
    }
  });
  for (int64_t i = 1; i <= queries; ++i) {
    const Seen seen = seen_by(x, i * rows / queries - 1);
    pairs.as<float>()[0] += float(seen.end - seen.begin);
  }
}

}  // namespace keel::ops::cpu
