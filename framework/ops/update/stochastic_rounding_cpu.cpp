#include "framework/ops/update/stochastic_rounding_cpu.h"

#include "framework/ops/support/threads.h"
#include "framework/ops/update/stochastic_rounding_bits.h"

namespace keel::ops::cpu {

void round_stochastically(Tensor y, ConstTensor x, const StochasticRounding& r) {
  const int64_t update = *r.updates.as<int64_t>() + (r.gate.as<float>()[1] != 0);
  const float* from = x.as<float>();
  bf16* to = y.as<bf16>();
  const int64_t n = x.elements();
  for_parts(n, parts_of(n, 4096), [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t logical = i / r.run * r.stride + r.offset + i % r.run, first = logical % kRoundedTogether;
      const RoundingDraw draw(r.key, logical / kRoundedTogether, update);
      const int64_t count = std::min({kRoundedTogether - first, r.run - i % r.run, end - i});
      for (int64_t j = 0; j < count; ++j, ++i)
        to[i].bits = rounded_by(std::bit_cast<uint32_t>(from[i]), draw[first + j]);
    }
  });
}

}  // namespace keel::ops::cpu
