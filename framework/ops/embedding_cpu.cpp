#include "framework/ops/embedding_cpu.h"

#include "framework/ops/support/threads.h"
#include "framework/tensor/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/embedding_cpu.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Once per target, hence after it.
#include "framework/ops/support/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace keel::ops::HWY_NAMESPACE {

template <class Y, class T>
void scaled_row(Y* y, const T* row, int64_t columns, float factor) {
  for_vectors(size_t(columns), [&](size_t i, auto lanes)
                                   HWY_ATTR { store(hn::Mul(load(row + i, lanes), splat(factor)), y + i, lanes); });
}

// Rows [begin, end) of y.
void look_up(Tensor y, ConstTensor table, const int32_t* ids, int64_t first_id, float factor) {
  const int64_t columns = y.size(1), rows = table.size(0);
  dispatch_float(y.dtype(), [&]<class Y>() {
    dispatch_float(table.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < y.size(0); ++i) {
        const int64_t row = ids[i] - first_id;
        Y* to = y.as<Y>() + i * y.stride(0);
        if (row < 0 || row >= rows)
          std::fill_n(to, columns, Y(0.0f));
        else
          scaled_row(to, table.as<T>() + row * table.stride(0), columns, factor);
      }
    });
  });
}

template <class T>
void add_row(float* sum, const T* row, int64_t columns, float factor) {
  for_vectors(size_t(columns), [&](size_t i, auto lanes) HWY_ATTR {
    store(hn::MulAdd(load(row + i, lanes), splat(factor), load(sum + i, lanes)), sum + i, lanes);
  });
}

// Adds every row of dy to the row of its id, in the order of the ids.
void add_rows(Tensor d_table, ConstTensor dy, const int32_t* ids, int64_t first_id, float factor) {
  float* sums = d_table.as<float>();
  dispatch_float(dy.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < dy.size(0); ++i) {
      const int64_t row = ids[i] - first_id;
      if (row < 0 || row >= d_table.size(0)) continue;
      add_row(sums + row * d_table.stride(0), dy.as<T>() + i * dy.stride(0), dy.size(1), factor);
    }
  });
}

}  // namespace keel::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel::ops::cpu {

HWY_EXPORT(look_up);
HWY_EXPORT(add_rows);

void embedding_forward(Tensor y, ConstTensor table, ConstTensor ids, int64_t first_id, float factor) {
  const int64_t grain = 16384 / std::max<int64_t>(y.size(1), 1);
  for_parts(y.size(0), parts_of(y.size(0), grain), [&](int, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(look_up)(y.slice(0, begin, end), table, ids.as<int32_t>() + begin, first_id, factor);
  });
}

// Each thread owns a range of columns and walks all ids: no atomics, equal shares however often an id occurs, and sums
// that do not depend on the thread count.
void embedding_backward(Tensor d_table, ConstTensor dy, ConstTensor ids, int64_t first_id, float factor) {
  constexpr int64_t kUnit = 16;  // columns: a cache line of sums
  const int64_t columns = dy.size(1), units = (columns + kUnit - 1) / kUnit;
  const int parts = std::min(parts_of(units, 4), parts_of(dy.elements(), 16384));
  for_parts(units, parts, [&](int, int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit, last = std::min(end * kUnit, columns);
    HWY_DYNAMIC_DISPATCH(add_rows)
    (d_table.slice(1, first, last), dy.slice(1, first, last), ids.as<int32_t>(), first_id, factor);
  });
}

}  // namespace keel::ops::cpu
#endif
