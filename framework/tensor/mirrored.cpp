#include "framework/tensor/mirrored.h"

namespace keel {

Mirrored::Mirrored(Device device, int64_t capacity_bytes) : device_(device, capacity_bytes) {
  if (device.kind == DeviceKind::cuda) host_ = Buffer::pinned(capacity_bytes, device);
}

Mirrored::Pair Mirrored::take(const Shape& shape, DType dtype) {
  constexpr int64_t kAlignment = 64;
  const int64_t begin = used_bytes_;
  used_bytes_ += (shape.elements() * bytes_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  require(used_bytes_ <= device_.size_bytes(), "{} of {} do not fit a block of {} bytes", shape, name_of(dtype),
          device_.size_bytes());
  const Tensor there = device_.tensor(begin, shape, dtype);
  return {host_.data() ? host_.tensor(begin, shape, dtype) : there, there};
}

// As words: tensors have no bytes.
Tensor Mirrored::bytes_to(const Buffer& side, int64_t end_bytes) const {
  return side.tensor(0, {end_bytes / 4}, DType::i32);
}

void Mirrored::upload(const Pair& last) const {
  if (!host_.data()) return;
  const auto* end = static_cast<const std::byte*>(last.host.data()) + last.host.size_bytes();
  const int64_t end_bytes = (end - host_.data() + 3) / 4 * 4;
  copy_async(bytes_to(device_, end_bytes), bytes_to(host_, end_bytes), Stream::current(device_.device()));
}

void Mirrored::download() const {
  if (!host_.data()) return;
  copy_async(bytes_to(host_, used_bytes_), bytes_to(device_, used_bytes_), Stream::current(device_.device()));
}

}  // namespace keel
