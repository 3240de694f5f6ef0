#include "framework/ops/matmul/product_rate.h"

#include <algorithm>
#include <chrono>

#include "framework/base/clock.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/ops/matmul/normal_values.h"
#include "framework/ops/matmul/onednn.h"
#include "framework/tensor/stream.h"

namespace keel::ops {
namespace {

// The least seconds of one product, after one that warms up.
double product_seconds(DType dtype, int64_t size, const ProductRateOptions& options) {
  const Stream& stream = Stream::current(options.device);
  OwnedTensor x({size, size}, dtype, options.device), w({size, size}, dtype, options.device);
  OwnedTensor y({size, size}, dtype, options.device);
  fill_normal(x, 1);
  fill_normal(w, 2);
  PackedWeight packed;
  packed.refresh(w);
  linear_forward(y, x, packed);
  stream.synchronize();
  double best_seconds = 0, spent_seconds = 0;
  for (int repetition = 0; repetition < 3 || spent_seconds < options.seconds; ++repetition) {
    auto start = Clock::now();
    linear_forward(y, x, packed);
    stream.synchronize();
    double one_seconds = seconds_since(start);
    spent_seconds += one_seconds;
    best_seconds = repetition == 0 ? one_seconds : std::min(best_seconds, one_seconds);
  }
  return best_seconds;
}

}  // namespace

double measure_product_rate(DType dtype, const ProductRateOptions& options) {
  require(options.size >= 0, "a product rate needs a size above 0, not {}", options.size);
  int64_t size = options.size > 0 ? options.size : 1024;
  double seconds = product_seconds(dtype, size, options);
  while (options.size == 0 && seconds < 1e-3 && size < 8192) seconds = product_seconds(dtype, size *= 2, options);
  if (options.device.kind == DeviceKind::cpu) onednn::forget_products();
  return 2.0 * double(size) * double(size) * double(size) / seconds;
}

}  // namespace keel::ops
