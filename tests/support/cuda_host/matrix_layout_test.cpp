// The layout table against values read off the figures of the PTX ISA.
#include "tests/support/cuda_host/matrix_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace keel {
namespace {

using cuda_host::FragmentElement;
using cuda_host::Position;
using cuda_host::position_of;

void expect_at(const FragmentElement* fragment, int lane, int element, Position expected) {
  const Position at = position_of(fragment[element], lane);
  EXPECT_EQ(at.row, expected.row) << "lane " << lane << " element " << element;
  EXPECT_EQ(at.col, expected.col) << "lane " << lane << " element " << element;
}

void expect_each_once(const FragmentElement* fragment, int elements, int rows, int cols) {
  std::set<int> seen;
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < elements; ++i) {
      const Position at = position_of(fragment[i], lane);
      EXPECT_TRUE(at.row >= 0 && at.row < rows && at.col >= 0 && at.col < cols);
      seen.insert(at.row * cols + at.col);
    }
  EXPECT_EQ(int(seen.size()), rows * cols);
}

// Corners and one place inside, as the figures show them: T0 {a0, a1} at the top left, T31 {a6, a7} at the bottom
// right.
TEST(MatrixLayout, EqualsTheFiguresOfThePtxIsa) {
  using namespace cuda_host;
  expect_at(kFragmentA, 0, 0, {0, 0});
  expect_at(kFragmentA, 0, 1, {0, 1});
  expect_at(kFragmentA, 3, 1, {0, 7});
  expect_at(kFragmentA, 0, 4, {0, 8});
  expect_at(kFragmentA, 3, 5, {0, 15});
  expect_at(kFragmentA, 28, 0, {7, 0});
  expect_at(kFragmentA, 0, 2, {8, 0});
  expect_at(kFragmentA, 17, 3, {12, 3});
  expect_at(kFragmentA, 31, 7, {15, 15});
  expect_at(kFragmentB, 0, 0, {0, 0});
  expect_at(kFragmentB, 0, 1, {1, 0});
  expect_at(kFragmentB, 3, 1, {7, 0});
  expect_at(kFragmentB, 0, 2, {8, 0});
  expect_at(kFragmentB, 28, 0, {0, 7});
  expect_at(kFragmentB, 31, 3, {15, 7});
  expect_at(kFragmentC, 0, 0, {0, 0});
  expect_at(kFragmentC, 0, 1, {0, 1});
  expect_at(kFragmentC, 4, 0, {1, 0});
  expect_at(kFragmentC, 0, 2, {8, 0});
  expect_at(kFragmentC, 31, 3, {15, 7});
  expect_at(kLoaded, 0, 1, {0, 1});
  expect_at(kLoaded, 5, 0, {1, 2});
  expect_at(kLoaded, 31, 1, {7, 7});
  expect_at(kLoadedTransposed, 5, 0, {2, 1});
  expect_at(kLoadedTransposed, 30, 1, {5, 7});
}

TEST(MatrixLayout, HoldsEachElementOnce) {
  expect_each_once(cuda_host::kFragmentA, 8, 16, 16);
  expect_each_once(cuda_host::kFragmentB, 4, 16, 8);
  expect_each_once(cuda_host::kFragmentC, 4, 16, 8);
  expect_each_once(cuda_host::kLoaded, 2, 8, 8);
  expect_each_once(cuda_host::kLoadedTransposed, 2, 8, 8);
}

}  // namespace
}  // namespace keel
