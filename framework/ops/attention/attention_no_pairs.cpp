// Other processors than x86.
#include "framework/base/error.h"
#include "framework/ops/attention/attention_pairs_cpu.h"

namespace keel::ops::cpu {

bool has_pair_products() {
  return false;
}
PairProduct pair_product(bool, bool, int64_t, int64_t) {
  throw Error(ErrorKind::internal, "products of bf16 pairs on a CPU that has none");
}
void narrow(Pair*, const float*, int64_t) {}
void narrow_rows(Pair*, const float*, const float*, int64_t, float) {}

}  // namespace keel::ops::cpu
