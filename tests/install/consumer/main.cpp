// RMS norm of 2^-10 with eps 2^-20, by the installed library: QKNORM.md's worked value.
#include <cstdio>

#include "framework/ops/norm.h"
#include "framework/tensor/buffer.h"

int main() {
  keel::OwnedTensor x({1, 8}, keel::DType::f32), y({1, 8}, keel::DType::f32), inverse({1}, keel::DType::f32),
      gain({8}, keel::DType::f32);
  for (int i = 0; i < 8; ++i) x.tensor.as<float>()[i] = 0x1p-10f, gain.tensor.as<float>()[i] = 1;
  keel::ops::norm_forward(
      {.y = y, .statistics = {inverse, {}}, .x = x, .weights = {gain, {}}, .options = {.eps = 0x1p-20f}});
  std::printf("%.6f\n", double(y.tensor.as<float>()[7]));
}
