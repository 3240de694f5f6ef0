// Small tensors that the host and a device both have and that travel together, in one copy. On the CPU both are one
// memory and nothing travels.
//
//   Mirrored block(device, 4096);
//   Mirrored::Pair limits = block.take({3}, DType::f64), norm = block.take({1}, DType::f64);
//   limits.host.as<double>()[0] = 5;
//   block.upload(limits);                  // everything taken so far, up to and with `limits`
//   ... ops on limits.device, norm.device ...
//   block.download();                      // on the current stream; read the host's side once that has got there
#pragma once

#include "framework/tensor/copy.h"

namespace keel {

class Mirrored {
 public:
  struct Pair {
    Tensor host, device;
  };

  Mirrored() = default;
  Mirrored(Device device, int64_t capacity_bytes);

  // 64-byte aligned, zero-filled. Past the capacity: an internal error.
  Pair take(const Shape& shape, DType dtype);
  // The host's bytes from the first pair to the end of `last`. They must stay as they are until the stream got there.
  void upload(const Pair& last) const;
  // All pairs.
  void download() const;

 private:
  Tensor bytes_to(const Buffer& side, int64_t end_bytes) const;

  Buffer device_, host_;  // host_ is empty on the CPU
  int64_t used_bytes_ = 0;
};

}  // namespace keel
