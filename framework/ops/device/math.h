// Arithmetic that the hardware has an instruction for and C++ has not.
#pragma once

#include "framework/ops/device/thread.h"

namespace keel::device {

// 2^x to about 2^-22 of itself, in one instruction (ex2.approx.ftz); 0 where that is below the least normal number.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace keel::device
