// The CUDA twin of copy.h.
#pragma once

#include <cstdint>

#include "framework/tensor/device.h"

namespace keel {

struct CopyRows {
  void* to;
  const void* from;
  int64_t rows;
  int64_t row_bytes;
  int64_t to_stride_bytes;
  int64_t from_stride_bytes;
};

namespace cuda {

// Starts the copy on the device's `stream` (cudaStream_t); the runtime knows from the addresses what lies where.
void copy_rows(const CopyRows& rows, Device device, void* stream);
void zero(void* data, int64_t size_bytes, Device device, void* stream);

}  // namespace cuda
}  // namespace keel
