// What every layer is given: where to put what backward needs, where to compute, and what kind of values flow.
//
// A layer's header opens with its formula. Its `Saved` lists what forward keeps for backward; the caller owns it, so
// that several micro-batches can be in flight. Activation gradients are overwritten, parameter gradients accumulated.
// Shapes: n = B*T tokens of this rank's micro-batch.
#pragma once

#include "framework/nn/parameter.h"
#include "framework/nn/tensor_group.h"

namespace keel::nn {

// The tokens of a micro-batch: n = sequences * length rows.
struct BatchShape {
  int64_t sequences = 0;  // B
  int64_t length = 0;     // T
  int64_t tokens() const { return sequences * length; }
};

struct Context {
  Arena& saved;    // lives until backward has used it
  Arena& scratch;  // stack order, within a call
  DType activation = DType::f32;
  TensorGroup* group = nullptr;
  DeviceKind device = DeviceKind::cpu;  // where the step runs; on the meta device, where it will
};

}  // namespace keel::nn
