#include "framework/comm/reduce.h"

#include <algorithm>
#include <type_traits>

namespace keel::comm {
namespace {

constexpr int64_t kTile = 512;                // elements whose sums stay in the first-level cache
constexpr int64_t kParallelElements = 65536;  // below, starting threads costs more than it saves

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

struct Sum {
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};

struct Max {
  template <class T>
  static T of(T a, T b) {
    return (b > a || b != b) && a == a ? b : a;  // the first NaN stays
  }
};

template <class T, class Combine>
void reduce_tile(T* out, std::span<const void* const> inputs, int64_t begin, int64_t elements) {
  Wide<T> total[kTile];
  const T* first = static_cast<const T*>(inputs[0]) + begin;
#pragma omp simd
  for (int64_t i = 0; i < elements; ++i) total[i] = Wide<T>(first[i]);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const T* in = static_cast<const T*>(inputs[rank]) + begin;
#pragma omp simd
    for (int64_t i = 0; i < elements; ++i) total[i] = Combine::of(total[i], Wide<T>(in[i]));
  }
#pragma omp simd
  for (int64_t i = 0; i < elements; ++i) out[begin + i] = T(total[i]);
}

template <class T, class Combine>
void reduce(T* out, std::span<const void* const> inputs, int64_t elements) {
  const int64_t tiles = (elements + kTile - 1) / kTile;
  auto reduce_one = [&](int64_t tile) {
    reduce_tile<T, Combine>(out, inputs, tile * kTile, std::min(kTile, elements - tile * kTile));
  };
  if (elements < kParallelElements) {
    for (int64_t tile = 0; tile < tiles; ++tile) reduce_one(tile);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t tile = 0; tile < tiles; ++tile) reduce_one(tile);
}

template <class T>
void reduce_as(void* out, std::span<const void* const> inputs, int64_t elements, Reduction reduction) {
  if (reduction == Reduction::sum) return reduce<T, Sum>(static_cast<T*>(out), inputs, elements);
  reduce<T, Max>(static_cast<T*>(out), inputs, elements);
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> inputs, int64_t elements, DType dtype,
                     Reduction reduction) {
  switch (dtype) {
    case DType::f32:
      return reduce_as<float>(out, inputs, elements, reduction);
    case DType::bf16:
      return reduce_as<bf16>(out, inputs, elements, reduction);
    case DType::i32:
      return reduce_as<int32_t>(out, inputs, elements, reduction);
    case DType::i64:
      return reduce_as<int64_t>(out, inputs, elements, reduction);
    case DType::f64:
      return reduce_as<double>(out, inputs, elements, reduction);
  }
}

}  // namespace keel::comm
