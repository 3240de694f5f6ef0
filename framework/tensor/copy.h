// Copies between devices. Both tensors have one shape and element type and are contiguous, or have two dims.
#pragma once

#include "framework/tensor/stream.h"
#include "framework/tensor/tensor.h"

namespace keel {

// After what runs on the current stream. Where either side is CPU memory, the copy has been made when this returns.
void copy(Tensor to, ConstTensor from);
// Starts the copy on `stream`. CPU memory must be Buffer::pinned and stay as it is until the stream has got there.
void copy_async(Tensor to, ConstTensor from, const Stream& stream);

}  // namespace keel
