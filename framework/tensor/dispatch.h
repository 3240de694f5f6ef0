// From run-time element types and devices to code. An op checks its arguments, then says
//
//   if (runs_on_cpu(y, x)) cpu::gelu_forward(y, x);
//
// and a twin picks its element type with dispatch_float(x.dtype(), [&]<class T>() { ... x.as<T>() ... }).
#pragma once

#include "framework/tensor/tensor.h"

namespace keel {

template <class F>
void dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    default:
      throw Error(ErrorKind::internal, fmt::format("no arithmetic on {} tensors here", name_of(dtype)));
  }
}

// True when the arguments lie on the CPU, false when they are on the meta device (nothing is to be done). Undefined
// tensors count as absent; arguments on different devices are an internal error.
template <class... Tensors>
bool runs_on_cpu(const ConstTensor& first, const Tensors&... rest) {
  Device device = first.device();
  (require(!rest.defined() || rest.device() == device, "tensors on {} and {} in one op", device.text(),
           rest.device().text()),
   ...);
  require(device.kind != DeviceKind::cuda, "this build has no CUDA");
  return device.kind == DeviceKind::cpu;
}

}  // namespace keel
