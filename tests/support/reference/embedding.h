// Table lookup in double. table [rows, columns] holds the ids [first_id, first_id + rows).
#pragma once

#include "tests/support/compare.h"

namespace keel::reference {

struct TableSizes {
  int64_t rows, columns, first_id;
};

inline testing::Values embedding_forward(const testing::Values& table, const std::vector<int32_t>& ids,
                                         TableSizes sizes, double factor) {
  testing::Values y(ids.size() * size_t(sizes.columns), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t row = ids[i] - sizes.first_id;
    if (row < 0 || row >= sizes.rows) continue;
    for (int64_t j = 0; j < sizes.columns; ++j)
      y[i * size_t(sizes.columns) + size_t(j)] = factor * table[size_t(row * sizes.columns + j)];
  }
  return y;
}

// What one pass adds to the table's gradient.
inline testing::Values embedding_backward(const testing::Values& dy, const std::vector<int32_t>& ids, TableSizes sizes,
                                          double factor) {
  testing::Values d_table(size_t(sizes.rows * sizes.columns), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t row = ids[i] - sizes.first_id;
    if (row < 0 || row >= sizes.rows) continue;
    for (int64_t j = 0; j < sizes.columns; ++j)
      d_table[size_t(row * sizes.columns + j)] += factor * dy[i * size_t(sizes.columns) + size_t(j)];
  }
  return d_table;
}

}  // namespace keel::reference
