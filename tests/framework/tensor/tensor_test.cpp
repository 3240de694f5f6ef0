#include "framework/tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace keel {
namespace {

TEST(Tensor, SlicesShareMemoryAndKeepStrides) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.f);
  Tensor x(data.data(), {2, 3, 4}, DType::f32);
  Tensor columns = x.slice(-1, 1, 3);
  EXPECT_EQ(columns.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(columns.as<float>()[columns.stride(0) + 2 * columns.stride(1) + 1], 12 + 8 + 2);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_TRUE(x.slice(0, 1, 2).contiguous());
  EXPECT_EQ(x.reshaped({6, 4}).stride(0), 4);
}

TEST(Tensor, RowsLeaveTheFirstDimOut) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.f);
  const Tensor x(data.data(), {2, 3, 4}, DType::f32), columns = x.slice(-1, 1, 3);
  EXPECT_EQ(x.row(1).shape(), (Shape{3, 4}));
  EXPECT_EQ(x.row(1).as<float>()[0], 12);
  EXPECT_TRUE(x.row(1).contiguous());
  EXPECT_EQ(columns.row(1).stride(0), 4);
  EXPECT_EQ(columns.row(1).row(2).shape(), (Shape{2}));
  EXPECT_EQ(columns.row(1).row(2).as<float>()[1], 12 + 8 + 2);
  EXPECT_EQ(x.flat().shape(), (Shape{24}));
  EXPECT_THROW(x.row(2), Error);
}

TEST(Tensor, StridedRowsCanBeCutIntoHeads) {
  Tensor rows = Tensor(nullptr, {6, 40}, DType::f32).slice(1, 0, 24);  // 6 rows of 24, 40 apart
  Tensor heads = rows.reshaped({2, 3, 4, 1, 6});
  EXPECT_EQ(heads.shape(), (Shape{2, 3, 4, 1, 6}));
  const int64_t strides[] = {120, 40, 6, 6, 1};
  for (int dim : {0, 1, 2, 4}) EXPECT_EQ(heads.stride(dim), strides[dim]) << dim;
  EXPECT_EQ(heads.slice(2, 1, 3).reshaped({6, 12}).stride(0), 40);
  EXPECT_THROW(rows.reshaped({12, 12, 1}).reshaped({144}), Error);
  EXPECT_THROW(rows.reshaped({9, 16}), Error);
}

TEST(Tensor, RefusesWhatDoesNotFit) {
  Tensor x(nullptr, {2, 3}, DType::bf16, {DeviceKind::meta});
  EXPECT_THROW(x.as<float>(), Error);
  EXPECT_THROW(x.reshaped({5}), Error);
  EXPECT_THROW(x.slice(1, 2, 4), Error);
  EXPECT_THROW(x.slice(1, 0, 2).reshaped({4}), Error);
  EXPECT_FALSE(Tensor().defined());
}

}  // namespace
}  // namespace keel
