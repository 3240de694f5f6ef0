#include "framework/ops/support/cpu_traits.h"

namespace keel::ops::cpu {

bool has_slow_bf16() {
  return false;
}

}  // namespace keel::ops::cpu
