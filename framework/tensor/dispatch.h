// From run-time element types and devices to code. An op checks its arguments, then says
//
//   run_twin(device_of(y, x), cpu::gelu_forward, cuda::gelu_forward, y, x);
//
// and a twin picks its element type with dispatch_float(x.dtype(), [&]<class T>() { ... x.as<T>() ... }).
#pragma once

#include <utility>

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

// The device kind that all arguments lie on; on different devices, an internal error. Undefined tensors count as
// absent.
template <class... Tensors>
DeviceKind device_of(const ConstTensor& first, const Tensors&... rest) {
  Device device = first.device();
  (require(!rest.defined() || rest.device() == device, "tensors on {} and {} in one op", device.text(),
           rest.device().text()),
   ...);
  return device.kind;
}

// An argument that is one number, in memory where the other arguments lie.
inline void require_scalar(const char* op, const ConstTensor& x, DType dtype) {
  require(x.shape() == Shape{1} && x.dtype() == dtype, "{}: {} {}, must be one {}", op, name_of(x.dtype()), x.shape(),
          name_of(dtype));
}

// Calls the twin for that device. On meta nothing is done, and a value is zero.
template <class Result, class... Parameters, class... Arguments>
Result run_twin(DeviceKind device, Result (*cpu)(Parameters...), Result (*cuda)(Parameters...),
                Arguments&&... arguments) {
  if (device == DeviceKind::cpu) return cpu(std::forward<Arguments>(arguments)...);
  if (device == DeviceKind::cuda) return cuda(std::forward<Arguments>(arguments)...);
  return Result();
}

}  // namespace keel
