// Small passes over whole tensors: conversion, sums, fills. All deterministic at a given size and thread count.
#pragma once

#include "framework/tensor/tensor.h"

namespace keel::ops {

// y = x in y's element type (fp32 <-> bf16, rounding to nearest even).
void convert(Tensor y, ConstTensor x);
// y = a + b; element types may differ, the sum is fp32 and rounded once to y's.
void add(Tensor y, ConstTensor a, ConstTensor b);
// y = value, y *= factor. y dense, fp32 or bf16, rounded once.
void fill(Tensor y, float value);
void scale(Tensor y, float factor);

// total [1] fp64 += the sum of squares of x, fp32 or bf16. NaN or Inf in x gives NaN or Inf.
void add_sum_of_squares(Tensor total, ConstTensor x);

// Values that bf16 cannot tell from others of their sign: |x| at or above its largest finite number, infinities
// included, and |x| below its least normal one, 0 and subnormal numbers. NaN is neither.
inline constexpr float kLargestBf16 = 0x1.fep127f, kLeastNormalBf16 = 0x1p-126f;

// counts [2] fp64 += how many values of x, fp32 or bf16, are saturated (|x| >= kLargestBf16) and flushed
// (|x| < kLeastNormalBf16).
void add_out_of_range(Tensor counts, ConstTensor x);

}  // namespace keel::ops
