#include "framework/ops/matmul/normal_values.h"

#include <algorithm>

#include "framework/base/rng.h"
#include "framework/ops/elementwise.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/copy.h"

namespace keel::ops {

void fill_normal(Tensor x, uint64_t seed) {
  const int64_t n = x.elements(), period = std::min<int64_t>(n, 65521);
  const OwnedTensor exact({period}, DType::f32), values({period}, x.dtype());
  for (int64_t i = 0; i < period; ++i) exact.tensor.as<float>()[i] = float(inverse_normal(uniform(seed, uint64_t(i))));
  convert(values, exact);
  const Tensor flat = x.reshaped({n});
  for (int64_t begin = 0; begin < n; begin += period) {
    const int64_t count = std::min(period, n - begin);
    copy(flat.slice(0, begin, begin + count), values.tensor.slice(0, 0, count));
  }
}

}  // namespace keel::ops
