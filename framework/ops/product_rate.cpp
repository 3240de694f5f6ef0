#include "framework/ops/product_rate.h"

#include <algorithm>
#include <chrono>

#include "framework/ops/elementwise.h"
#include "framework/ops/matmul.h"

namespace keel::ops {

double measure_product_rate(DType dtype, int64_t size, double seconds) {
  require(size > 0, "a product rate needs a size above 0, not {}", size);
  using Clock = std::chrono::steady_clock;
  OwnedTensor x({size, size}, dtype), w({size, size}, dtype), y({size, size}, dtype);
  fill(x, 0.5f);
  fill(w, 0.25f);
  PackedWeight packed;
  packed.refresh(w);
  linear_forward(y, x, packed);
  double best_seconds = 0, spent_seconds = 0;
  for (int repetition = 0; repetition < 3 || spent_seconds < seconds; ++repetition) {
    auto start = Clock::now();
    linear_forward(y, x, packed);
    double one_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    spent_seconds += one_seconds;
    best_seconds = repetition == 0 ? one_seconds : std::min(best_seconds, one_seconds);
  }
  return 2.0 * double(size) * double(size) * double(size) / best_seconds;
}

}  // namespace keel::ops
