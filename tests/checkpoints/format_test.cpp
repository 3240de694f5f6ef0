#include "checkpoints/format.h"

#include <gtest/gtest.h>

namespace keel::checkpoints {
namespace {

TEST(Format, FileNames) {
  EXPECT_EQ(file_name(1000), "step-00001000.h5");
  EXPECT_EQ(file_name(123456789012), "step-123456789012.h5");
  for (int64_t step : {int64_t(0), int64_t(7), int64_t(99999999), int64_t(100000000), int64_t(1) << 60})
    EXPECT_EQ(step_of(file_name(step)), step);
  for (const char* other : {"", "step-.h5", "step-1.h5", "step-00001000.h5.writing", "step-00001000.h5.set-aside",
                            "step-0000100x.h5", "step--0001000.h5", "step-00001000.hdf", "xstep-00001000.h5",
                            "step-99999999999999999999999.h5", "step- 0001000.h5", "step-+0001000.h5"})
    EXPECT_EQ(step_of(other), -1) << other;
}

TEST(Format, TilesCoverEveryRowOnce) {
  for (auto [shape, tile] : {std::pair(Shape{137, 3}, 16),
                             {{2, 3}, 16},
                             {{1}, 1},
                             {{5, 4, 3}, 12},
                             {{5, 4, 3}, 11},
                             {{1000}, 7},
                             {{3, 100}, 1}}) {
    const Tiling tiling(shape, tile);
    int64_t row = 0, element = 0;
    for (int64_t i = 0; i < tiling.tiles(); ++i) {
      EXPECT_EQ(tiling.first_row(i), row);
      EXPECT_EQ(tiling.begin(i), element);
      EXPECT_GT(tiling.rows(i), 0);
      EXPECT_TRUE(tiling.rows(i) == 1 || tiling.elements(i) <= tile);
      row += tiling.rows(i);
      element += tiling.elements(i);
    }
    EXPECT_EQ(row, shape[0]);
    EXPECT_EQ(element, shape.elements());
  }
  EXPECT_THROW(Tiling(Shape{0, 3}), Error);
  EXPECT_THROW(Tiling(Shape{3, 0}), Error);
}

// Numbers only, no allocation: beyond 32 bits.
TEST(Format, LargeTensor) {
  const Tiling tiling(Shape{200000, 16384});
  EXPECT_EQ(tiling.rows(0), 16);
  EXPECT_EQ(tiling.tiles(), 12500);
  EXPECT_EQ(tiling.begin(12499), int64_t(199984) * 16384);
}

TEST(Format, Paths) {
  EXPECT_EQ(path_of(TensorKind::moment2, "a.b"), "moment2/a.b");
  EXPECT_EQ(checksums_of(path_of(TensorKind::weight, "a.b")), "checksums/parameters/a.b");
}

}  // namespace
}  // namespace keel::checkpoints
