// Copies between devices, and zeroes. Both tensors have one shape and element type and are contiguous, or have two
// dims.
#pragma once

#include "framework/tensor/buffer.h"
#include "framework/tensor/stream.h"

namespace keel {

// After what runs on the current stream. Where either side is CPU memory, the copy has been made when this returns.
void copy(Tensor to, ConstTensor from);
// Starts the copy on `stream`. CPU memory must be Buffer::pinned and stay as it is until the stream has got there.
void copy_async(Tensor to, ConstTensor from, const Stream& stream);
// All bytes of a contiguous tensor 0, on the current stream.
void zero(Tensor x);

// A contiguous tensor's elements where the host can reach them: the tensor itself on the CPU; for a GPU's a copy, made
// here and brought back by put_back(). For set-up, files and reports, not for a step.
class HostTensor {
 public:
  explicit HostTensor(ConstTensor tensor);
  const Tensor& tensor() const { return here_; }
  void put_back() const;

 private:
  OwnedTensor copy_;
  Tensor here_, there_;
};

}  // namespace keel
