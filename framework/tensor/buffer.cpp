#include "framework/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <exception>

#include "framework/base/text.h"
#include "framework/tensor/buffer_cuda.h"
#include "framework/tensor/stream.h"
#include "framework/tensor/wait_guard.h"

namespace keel {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector register

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Buffer::Buffer(Device device, int64_t size_bytes) : device_(device), size_bytes_(size_bytes) {
  if (device.is_meta() || size_bytes == 0) return;
  if (device.kind == DeviceKind::cuda) {
    data_ = {cuda::allocate(device, size_bytes), Free{Kind::device, size_bytes, device}};
    return;
  }
  void* address = mmap(nullptr, size_t(size_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    throw input_error("no memory for {} on the {}: use fewer micro_sequences, more ranks or a smaller model",
                      human_bytes(double(size_bytes)), device.text());
  madvise(address, size_t(size_bytes), MADV_HUGEPAGE);  // fewer TLB misses; a refusal changes nothing else
  data_ = {static_cast<std::byte*>(address), Free{Kind::mapped, size_bytes, device}};
}

Buffer Buffer::pinned(int64_t size_bytes, Device device) {
  if (device.kind != DeviceKind::cuda || size_bytes == 0) return Buffer(Device{}, size_bytes);
  Buffer buffer;
  buffer.size_bytes_ = size_bytes;
  buffer.data_ = {cuda::allocate_pinned(device, size_bytes), Free{Kind::pinned, size_bytes, device}};
  return buffer;
}

// Releasing GPU memory waits for the GPU; where that will not end, nothing may use it any more.
void Buffer::Free::operator()(std::byte* data) const {
  if (kind != Kind::mapped) {
    try {
      if (std::uncaught_exceptions() > 0)
        WaitGuard::unwind_all();
      else
        Stream::finish(device);
    } catch (...) {
      WaitGuard::unwind_all();  // what went wrong shows in the next call
    }
  }
  if (kind == Kind::mapped) munmap(data, size_t(size_bytes));
  if (kind == Kind::device) cuda::release(data);
  if (kind == Kind::pinned) cuda::release_pinned(data);
}

Tensor Buffer::tensor(int64_t offset_bytes, const Shape& shape, DType dtype) const {
  int64_t end_bytes = offset_bytes + shape.elements() * bytes_of(dtype);
  require(offset_bytes >= 0 && end_bytes <= size_bytes_, "bytes [{}, {}) are outside a buffer of {}", offset_bytes,
          end_bytes, size_bytes_);
  return Tensor(data_ ? data_.get() + offset_bytes : nullptr, shape, dtype, device_);
}

Arena::Arena(Device device, int64_t capacity_bytes) : device_(device), buffer_(device, aligned(capacity_bytes)) {}

Tensor Arena::take(const Shape& shape, DType dtype) {
  int64_t begin = used_bytes_, size = aligned(shape.elements() * bytes_of(dtype));
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  if (device_.is_meta()) return Tensor(nullptr, shape, dtype, device_);
  require(used_bytes_ <= buffer_.size_bytes(), "the planned {} bytes are too few for {} of {} more",
          buffer_.size_bytes(), shape, name_of(dtype));
  return buffer_.tensor(begin, shape, dtype);
}

Tensor Arena::take_rows(int64_t rows, int64_t columns, DType dtype) {
  return take({rows, row_stride(columns, dtype)}, dtype).slice(1, 0, columns);
}

int64_t Arena::row_stride(int64_t columns, DType dtype) {
  const bool meet = columns * bytes_of(dtype) % 4096 == 0;
  return columns + (meet ? kAlignment / bytes_of(dtype) : 0);
}

}  // namespace keel
