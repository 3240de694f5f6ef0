// Products on the CPU: oneDNN's own where it has one for the types, else fp32 products of the rounded values.
#pragma once

#include <string>

#include "framework/ops/matmul/onednn.h"

namespace keel::ops::cpu {

// c = a b (+ bias) (+ c). Any sizes, 0 included. b may be fp32 where a is bf16: values rounded to bf16 and widened
// once. `blocked`, where defined, is a copy of b.
void product(const onednn::Product& product, const onednn::Blocked* blocked = nullptr);

// The same through fp32, for processors that do not multiply bf16 well: bf16 operands are widened and results narrowed block
// by block, in up to 48 MiB of scratch per calling thread.
void widened_product(const onednn::Product& product);

const onednn::Bf16Support& bf16_support();

}  // namespace keel::ops::cpu
