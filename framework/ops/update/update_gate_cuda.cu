#include <cfloat>

#include "framework/ops/support/kernel.h"
#include "framework/ops/update/update_gate_cuda.h"

// A few dozen numbers, once per step: one warp.
namespace keel::ops::cuda {
namespace {

struct Inputs {
  const double *sums, *squares;
  const float* largest_logit;
  int64_t logits;
  const double* limits;
  double copies, clip_norm;
};

// The larger one; NaN wins.
__device__ __forceinline__ float larger(float a, float b) {
  return a != a || a > b ? a : b;
}

__device__ __forceinline__ bool finite(double x) {
  return x - x == 0;
}

__global__ void __launch_bounds__(device::kWarp) decide(float* gate, double* values, Inputs in) {
  float largest = 0;
  for (int64_t i = device::thread_index().x; i < in.logits; i += device::kWarp)
    largest = larger(in.largest_logit[i], largest);
#pragma unroll
  for (unsigned bits = device::kWarp / 2; bits > 0; bits /= 2)
    largest = larger(device::shuffle_xor(largest, bits), largest);
  if (device::thread_index().x != 0) return;
  const double counted = in.sums[2] / in.copies, each = in.copies * (counted > 1 ? counted : 1);
  const double loss = in.sums[3] < in.sums[2] ? double(NAN) : in.sums[0] / each;
  double norm = sqrt(*in.squares);
  const bool clip = in.clip_norm > 0 && norm > in.clip_norm;
  const double scaled = clip ? in.clip_norm : norm;
  if (scaled * scaled > double(FLT_MAX)) norm = INFINITY;
  const bool made = in.sums[2] > 0 && finite(loss) && finite(norm) && finite(double(largest)) && loss <= in.limits[0] &&
                    norm <= in.limits[1] && double(largest) <= in.limits[2];
  values[0] = loss;
  values[1] = in.sums[1] / each;
  values[2] = norm;
  values[3] = double(largest);
  gate[0] = clip ? float(in.clip_norm / norm) : 1.f;
  gate[1] = made ? 1.f : 0.f;
}

}  // namespace

void update_gate(Tensor gate, Tensor values, const UpdateGateInputs& in, double clip_norm) {
  launch(decide, 1, device::kWarp, 0, keel::cuda::current_stream(gate.device()), at<float>(gate), at<double>(values),
         Inputs{at<double>(in.sums), at<double>(in.squares), at<float>(in.largest_logit), in.largest_logit.elements(),
                at<double>(in.limits), double(in.copies), clip_norm});
}

}  // namespace keel::ops::cuda
