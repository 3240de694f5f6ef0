#include "tests/support/cuda_host/matrix.h"

#include <bit>
#include <cstring>

#include "tests/support/cuda_host/async_copies.h"
#include "tests/support/cuda_host/block.h"
#include "tests/support/cuda_host/matrix_layout.h"
#include "tests/support/cuda_host/traffic.h"

namespace keel::cuda_host {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

std::atomic<int64_t> products = 0;

// Element i of registers that hold two bf16 each.
uint16_t half_of(const uint32_t* registers, int i) {
  return uint16_t(registers[i / 2] >> (16 * (i % 2)));
}

float to_float(uint16_t bf16) {
  return std::bit_cast<float>(uint32_t(bf16) << 16);
}

void load_all(void* const* arguments, unsigned) {
  const auto* first = static_cast<const MatrixLoad*>(arguments[0]);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t elements[8][8];
    for (int row = 0; row < 8; ++row) {
      const void* address = static_cast<const MatrixLoad*>(arguments[8 * matrix + row])->row;
      require_aligned(address, 16, "ldmatrix");
      std::memcpy(elements[row], address, 16);
    }
    for (int lane = 0; lane < int(kWarp); ++lane) {
      const FragmentElement* layout = first->transposed ? kLoadedTransposed : kLoaded;
      uint32_t value = 0;
      for (int i = 0; i < 2; ++i) {
        const Position at = position_of(layout[i], lane);
        value |= uint32_t(elements[at.row][at.col]) << (16 * i);
      }
      static_cast<MatrixLoad*>(arguments[lane])->registers[matrix] = value;
    }
  }
}

void multiply_all(void* const* arguments, unsigned) {
  ++products;
  float a[16][16], b[16][8], sums[16][8];
  for (int lane = 0; lane < int(kWarp); ++lane) {
    const auto* own = static_cast<const MatrixProduct*>(arguments[lane]);
    for (int i = 0; i < 8; ++i) {
      const Position at = position_of(kFragmentA[i], lane);
      a[at.row][at.col] = to_float(half_of(own->a, i));
    }
    for (int i = 0; i < 4; ++i) {
      const Position at = position_of(kFragmentB[i], lane);
      b[at.row][at.col] = to_float(half_of(own->b, i));
    }
  }
  // Products of bf16 are exact in fp32. The order of the hardware's sum is not documented: double, rounded once.
  for (int lane = 0; lane < int(kWarp); ++lane) {
    const auto* own = static_cast<const MatrixProduct*>(arguments[lane]);
    for (int i = 0; i < 4; ++i) {
      const Position at = position_of(kFragmentC[i], lane);
      double sum = own->sums[i];
      for (int k = 0; k < 16; ++k) sum += double(a[at.row][k]) * double(b[k][at.col]);
      sums[at.row][at.col] = float(sum);
    }
  }
  for (int lane = 0; lane < int(kWarp); ++lane)
    for (int i = 0; i < 4; ++i) {
      const Position at = position_of(kFragmentC[i], lane);
      static_cast<const MatrixProduct*>(arguments[lane])->sums[i] = sums[at.row][at.col];
    }
}

}  // namespace

int64_t matrix_products() {
  return products;
}

void load_matrices(MatrixLoad load, const std::source_location& place) {
  warp_collective(kAllLanes, load_all, &load, place);
}

void multiply_add(MatrixProduct product, const std::source_location& place) {
  warp_collective(kAllLanes, multiply_all, &product, place);
}

}  // namespace keel::cuda_host
