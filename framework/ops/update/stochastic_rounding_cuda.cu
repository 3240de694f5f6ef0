#include "framework/ops/support/kernel.h"
#include "framework/ops/update/stochastic_rounding_bits.h"
#include "framework/ops/update/stochastic_rounding_cuda.h"

// A streaming pass: 4 bytes read and 2 written per weight, and 10 rounds of Philox per 8 of them.
namespace keel::ops::cuda {
namespace {

struct Place {
  int64_t run, stride, offset;
};
struct Update {
  uint64_t key;
  const int64_t* updates;
  const float* gate;
};

// N = 8: packs are whole groups of logical elements.
template <int N>
__global__ void __launch_bounds__(kThreads) round_flat(uint16_t* y, const uint32_t* x, Place at, Update of, int64_t n) {
  const int64_t update = *of.updates + (of.gate[1] != 0 ? 1 : 0);
  for_elements<1>(n / N, [&](int64_t pack, auto) {
    const int64_t i = pack * N, logical = i / at.run * at.stride + at.offset + i % at.run;
    const RoundingDraw draw(of.key, logical / kRoundedTogether, update);
    if constexpr (N == 1) {
#pragma unroll
      for (int j = 0; j < kRoundedTogether; ++j)  // an index known to the compiler keeps the draw in registers
        if (j == logical % kRoundedTogether) y[i] = rounded_by(x[i], draw[j]);
    } else {
      const auto low = device::load_vector<Pack<uint32_t, 4>>(x + i);
      const auto high = device::load_vector<Pack<uint32_t, 4>>(x + i + 4);
      Pack<uint16_t, 8> pack_of_y;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pack_of_y.values[j] = rounded_by(low.values[j], draw[j]);
        pack_of_y.values[j + 4] = rounded_by(high.values[j], draw[j + 4]);
      }
      device::store_vector(y + i, pack_of_y);
    }
  });
}

}  // namespace

void round_stochastically(Tensor y, ConstTensor x, const StochasticRounding& r) {
  const bool whole_groups =
      x.elements() % kWide == 0 && r.run % kWide == 0 && r.stride % kWide == 0 && r.offset % kWide == 0;
  dispatch_width(whole_groups ? width_of(y, x) : 1, [&]<int N>() {
    launch(round_flat<N>, blocks_for(x.device(), x.elements() / N), kThreads, 0, keel::cuda::current_stream(x.device()),
           static_cast<uint16_t*>(y.data()), static_cast<const uint32_t*>(x.data()), Place{r.run, r.stride, r.offset},
           Update{r.key, r.updates.as<int64_t>(), at<float>(r.gate)}, x.elements());
  });
}

}  // namespace keel::ops::cuda
