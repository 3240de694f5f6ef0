#include "framework/ops/support/cpu_traits.h"

namespace keel::ops::cpu {

// Intel's Golden Cove and later (Sapphire Rapids, 2023, ff.: AVX512_FP16 tells them from Cooper Lake) begin one
// vdpbf16ps of 32 products in two cycles, and two fp32 FMAs of 16 in one: measured, half of the fp32 rate. Their bf16 is
// AMX's, which virtual machines often hide.
bool has_slow_bf16() {
  return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512fp16");
}

}  // namespace keel::ops::cpu
