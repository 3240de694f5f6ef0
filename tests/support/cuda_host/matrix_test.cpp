// The layout table against values read off the figures of the PTX ISA, and the instructions against plain products.
#include <device/launch.h>
#include <device/matrix.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "framework/tensor/dtype.h"
#include "tests/support/cuda_host/matrix_layout.h"
#include "tests/support/cuda_host/streams.h"

namespace keel {
namespace {

using namespace device;
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

// One warp: c [16, 8] = 1 + a [16, 16] b [16, 8]. a is loaded as four 8x8 matrices: rows 0-7, rows 8-15, then the right
// halves. b is stored by rows [k][n], so it is loaded transposed. `planted` swaps two of a's registers.
__global__ void product(float* c, const uint16_t* a, const uint16_t* b, bool planted) {
  uint16_t* shared_a = shared_memory<uint16_t>();
  uint16_t* shared_b = shared_a + 256;
  const unsigned lane = thread_index().x;
  for (unsigned i = lane; i < 256; i += 32) shared_a[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) shared_b[i] = b[i];
  sync_threads();
  uint32_t of_a[4], of_b[2];
  float sums[4] = {1, 1, 1, 1};
  load_matrices(of_a, shared_a + (lane % 16) * 16 + lane / 16 * 8);
  load_matrices_transposed(of_b, shared_b + (lane % 16) * 8);
  if (planted) {
    const uint32_t other = of_a[1];
    of_a[1] = of_a[2];
    of_a[2] = other;
  }
  multiply_add(sums, of_a, of_b);
  for (unsigned i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

template <class T>
T* on_device(const std::vector<T>& values) {
  void* memory = nullptr;
  KEEL_CUDA(cudaMalloc(&memory, values.size() * sizeof(T)));
  KEEL_CUDA(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

TEST(MatrixInstructions, MultiplyAndAWrongFragmentIsSeen) {
  std::vector<uint16_t> a, b;
  for (int i = 0; i < 256; ++i) a.push_back(bf16(float(i * 37 % 19 - 9)).bits);
  for (int i = 0; i < 128; ++i) b.push_back(bf16(float(i * 53 % 23 - 11)).bits);
  auto value = [](uint16_t bits) {
    bf16 x;
    x.bits = bits;
    return float(x);
  };
  std::vector<float> expected(128, 1.f), got(128);
  for (size_t row = 0; row < 16; ++row)
    for (size_t col = 0; col < 8; ++col)
      for (size_t k = 0; k < 16; ++k) expected[row * 8 + col] += value(a[row * 16 + k]) * value(b[k * 8 + col]);
  float* c = on_device(got);
  uint16_t *of_a = on_device(a), *of_b = on_device(b);
  for (bool planted : {false, true}) {
    launch(product, 1, 32, 768, nullptr, c, of_a, of_b, planted);
    KEEL_CUDA(cudaMemcpy(got.data(), c, 512, cudaMemcpyDeviceToHost));
    EXPECT_EQ(got == expected, !planted);
  }
  for (void* memory : {static_cast<void*>(c), static_cast<void*>(of_a), static_cast<void*>(of_b)})
    KEEL_CUDA(cudaFree(memory));
}

}  // namespace
}  // namespace keel
