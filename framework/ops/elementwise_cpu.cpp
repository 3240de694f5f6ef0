#include "framework/ops/elementwise_cpu.h"

#include <vector>

#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/elementwise_cpu.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Once per target, hence after it.
#include "framework/ops/support/simd-inl.h"
// On top of simd-inl.h.
#include "framework/ops/support/double_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

void convert_row(void* y, DType y_type, const void* x, DType x_type, int64_t n) {
  dispatch_float(y_type, [&]<class Y>() {
    dispatch_float(x_type, [&]<class X>() {
      auto* to = static_cast<Y*>(y);
      const auto* from = static_cast<const X*>(x);
      for_vectors(size_t(n), [&](size_t i, auto lanes) HWY_ATTR { store(load(from + i, lanes), to + i, lanes); });
    });
  });
}

template <class Y, class A, class B>
void add_typed(Y* y, const A* a, const B* b, int64_t n) {
  for_vectors(size_t(n), [&](size_t i, auto lanes)
                             HWY_ATTR { store(hn::Add(load(a + i, lanes), load(b + i, lanes)), y + i, lanes); });
}

void add_row(Tensor y, ConstTensor a, ConstTensor b) {
  dispatch_float(y.dtype(), [&]<class Y>() {
    dispatch_float(a.dtype(), [&]<class A>() {
      dispatch_float(b.dtype(), [&]<class B>() { add_typed(y.as<Y>(), a.as<A>(), b.as<B>(), y.elements()); });
    });
  });
}

void scale_row(Tensor y, float factor) {
  dispatch_float(y.dtype(), [&]<class Y>() {
    Y* at = y.as<Y>();
    for_vectors(size_t(y.elements()), [&](size_t i, auto lanes) HWY_ATTR {
      store(hn::Mul(load(at + i, lanes), splat(factor)), at + i, lanes);
    });
  });
}

void fill_row(Tensor y, float value) {
  dispatch_float(y.dtype(), [&]<class Y>() {
    Y* at = y.as<Y>();
    for_vectors(size_t(y.elements()), [&](size_t i, auto lanes) HWY_ATTR { store(splat(value), at + i, lanes); });
  });
}

double squares_of_row(ConstTensor x) {
  DoubleVec low = hn::Zero(F64()), high = low;
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* values = x.as<T>();
    for_vectors(size_t(x.elements()),
                [&](size_t i, auto lanes) HWY_ATTR { add_squares(load(values + i, lanes), low, high); });
  });
  return sum_of(low, high);
}

cpu::OutOfRange out_of_range_of_row(ConstTensor x) {
  cpu::OutOfRange counts;
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* values = x.as<T>();
    for_vectors(size_t(x.elements()), [&](size_t i, auto lanes) HWY_ATTR {
      const Vec size = hn::Abs(replace_tail(load(values + i, lanes), 1, lanes));
      counts.saturated += int64_t(hn::CountTrue(F32(), hn::Ge(size, splat(kLargestBf16))));
      counts.flushed += int64_t(hn::CountTrue(F32(), hn::Lt(size, splat(kLeastNormalBf16))));
    });
  });
  return counts;
}

// sums [columns] = the column sums of x, added in fp32 over up to 64 rows at a time and then to the whole.
template <class T>
void column_sums_of(float* sums, const T* x, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t kRowsAtOnce = 64;
  std::fill(sums, sums + columns, 0.0f);
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t end = std::min(row + kRowsAtOnce, rows);
    for_vectors(size_t(columns), [&](size_t i, auto lanes) HWY_ATTR {
      Vec part = zero();
      for (int64_t r = row; r < end; ++r) part = hn::Add(part, load(x + r * stride + i, lanes));
      store(hn::Add(load(sums + i, lanes), part), sums + i, lanes);
    });
  }
}

void column_sums(float* sums, const cpu::Rows& x, int64_t first_row, int64_t rows, int64_t columns) {
  dispatch_float(x.dtype, [&]<class T>() {
    column_sums_of(sums, static_cast<const T*>(x.data) + first_row * x.stride_elements, x.stride_elements, rows,
                   columns);
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops::cpu {

HWY_EXPORT(convert_row);
HWY_EXPORT(add_row);
HWY_EXPORT(scale_row);
HWY_EXPORT(fill_row);
HWY_EXPORT(squares_of_row);
HWY_EXPORT(out_of_range_of_row);
HWY_EXPORT(column_sums);

namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread

// Flat ranges of contiguous tensors of one shape, each given to one thread as f(slices...).
template <class F, class... Tensors>
void for_flat(const F& f, const Tensors&... tensors) {
  const int64_t n = std::get<0>(std::tie(tensors...)).elements();
  for_parts(n, parts_of(n, kGrain),
            [&](int, int64_t begin, int64_t end) { f(tensors.reshaped({n}).slice(0, begin, end)...); });
}

}  // namespace

void convert_rows(const Rows& y, const Rows& x, int64_t rows, int64_t columns) {
  for_parts(rows, parts_of(rows, kGrain / std::max<int64_t>(columns, 1)), [&](int, int64_t begin, int64_t end) {
    auto at = [](const Rows& view, int64_t row) {
      return static_cast<std::byte*>(view.data) + row * view.stride_elements * bytes_of(view.dtype);
    };
    for (int64_t row = begin; row < end; ++row)
      HWY_DYNAMIC_DISPATCH(convert_row)(at(y, row), y.dtype, at(x, row), x.dtype, columns);
  });
}

void convert(Tensor y, ConstTensor x) {
  if (x.contiguous() && y.contiguous())
    return for_flat(
        [](Tensor to, ConstTensor from) {
          HWY_DYNAMIC_DISPATCH(convert_row)(to.data(), to.dtype(), from.data(), from.dtype(), to.elements());
        },
        y, x);
  const Rows from{const_cast<void*>(x.data()), x.stride(0), x.dtype()};
  convert_rows({y.data(), y.stride(0), y.dtype()}, from, x.size(0), x.size(1));
}

void add(Tensor y, ConstTensor a, ConstTensor b) {
  for_flat([](Tensor y, ConstTensor a, ConstTensor b) { HWY_DYNAMIC_DISPATCH(add_row)(y, a, b); }, y, a, b);
}

void fill(Tensor y, float value) {
  for_flat([&](Tensor y) { HWY_DYNAMIC_DISPATCH(fill_row)(y, value); }, y);
}

void scale(Tensor y, float factor) {
  for_flat([&](Tensor y) { HWY_DYNAMIC_DISPATCH(scale_row)(y, factor); }, y);
}

void add_sum_of_squares(Tensor total, ConstTensor x) {
  constexpr int kChunks = 64;  // fixed: the sum does not depend on the thread count
  const int64_t n = x.elements();
  const ConstTensor flat = x.reshaped({n});
  double partial[kChunks] = {};
  for_parts(kChunks, parts_of(n, kGrain), [&](int, int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk)
      partial[chunk] =
          HWY_DYNAMIC_DISPATCH(squares_of_row)(flat.slice(0, n * chunk / kChunks, n * (chunk + 1) / kChunks));
  });
  double sum = 0;
  for (double chunk : partial) sum += chunk;
  *total.as<double>() += sum;
}

void add_out_of_range(Tensor counts, ConstTensor x) {
  const int64_t n = x.elements();
  const ConstTensor flat = x.reshaped({n});
  int64_t saturated = 0, flushed = 0;
#pragma omp parallel for schedule(static) reduction(+ : saturated, flushed) if (n > kGrain)
  for (int64_t begin = 0; begin < n; begin += kGrain) {
    const OutOfRange of_part =
        HWY_DYNAMIC_DISPATCH(out_of_range_of_row)(flat.slice(0, begin, std::min(begin + kGrain, n)));
    saturated += of_part.saturated;
    flushed += of_part.flushed;
  }
  counts.as<double>()[0] += double(saturated);
  counts.as<double>()[1] += double(flushed);
}

void add_column_sums(float* sums, const Rows& x, int64_t rows, int64_t columns) {
  constexpr int64_t kRowsPerPart = 256, kMostParts = 64;
  const int64_t parts = std::clamp<int64_t>(rows / kRowsPerPart, 1, kMostParts);
  thread_local std::vector<float> partial;  // at most 64 floats a column
  partial.resize(std::max(partial.size(), size_t(parts * columns)));
  float* all = partial.data();
  for_parts(parts, parts_of(rows * columns, kGrain), [&](int, int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
      HWY_DYNAMIC_DISPATCH(column_sums)(all + part * columns, x, first, last - first, columns);
    }
  });
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t column = 0; column < columns; ++column) sums[column] += all[part * columns + column];
}

}  // namespace keel::ops::cpu
#endif
