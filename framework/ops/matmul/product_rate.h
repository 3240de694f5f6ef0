// What this machine's products reach, measured: the peak that MFU is a share of, and a line of `keel bench`.
#pragma once

#include "framework/tensor/device.h"
#include "framework/tensor/dtype.h"

namespace keel::ops {

struct ProductRateOptions {
  int64_t size = 0;  // 0: 1024, doubled up to 8192 as long as one product takes less than a millisecond
  double seconds = 1;
  Device device;
};

// Floating-point operations per second of y = x W^T with a packed W, all matrices [size, size], with the threads that
// products use here: the best of as many repetitions as fit into `seconds`, at least three, after one that warms up.
double measure_product_rate(DType dtype, const ProductRateOptions& options = {});

}  // namespace keel::ops
