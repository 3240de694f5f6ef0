// The stand-in's side of framework/ops/device/matrix.h.
#pragma once

#include <cstdint>

#include "tests/support/cuda_host/device/thread.h"
#include "tests/support/cuda_host/matrix.h"

namespace keel::device {

using Place = std::source_location;

inline void load_matrices(uint32_t (&registers)[4], const void* row, Place place = Place::current()) {
  cuda_host::load_matrices({registers, row, false}, place);
}
inline void load_matrices_transposed(uint32_t (&registers)[4], const void* row, Place place = Place::current()) {
  cuda_host::load_matrices({registers, row, true}, place);
}

inline void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         Place place = Place::current()) {
  cuda_host::multiply_add({sums, a, b}, place);
}

}  // namespace keel::device
