// Buffer owns memory on a device; Arena hands out tensors from one buffer in stack order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/tensor/device.h"
#include "framework/tensor/tensor.h"

namespace keel {

// Zero-filled memory of a fixed size, aligned to 64 bytes. Empty on the meta device. Throws input_error when the
// machine has not that much.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device device, int64_t size_bytes);
  // CPU memory that the copies of `device` read and write while the host goes on; ordinary memory where that is no GPU.
  static Buffer pinned(int64_t size_bytes, Device device);

  Device device() const { return device_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::byte* data() const { return data_.get(); }
  // A tensor over the bytes from `offset_bytes` on.
  Tensor tensor(int64_t offset_bytes, const Shape& shape, DType dtype) const;

 private:
  enum class Kind { mapped, device, pinned };
  struct Free {
    Kind kind;
    int64_t size_bytes;
    Device device;  // whose copies read it, where it is pinned
    void operator()(std::byte* data) const;
  };
  Device device_;
  int64_t size_bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

// A tensor that owns its memory, for parameters, tests and tools.
struct OwnedTensor {
  OwnedTensor() = default;
  OwnedTensor(const Shape& shape, DType dtype, Device device = {})
      : buffer(device, shape.elements() * bytes_of(dtype)), tensor(buffer.tensor(0, shape, dtype)) {}
  operator Tensor() const { return tensor; }
  operator ConstTensor() const { return tensor; }

  Buffer buffer;
  Tensor tensor;
};

// Stack allocation without system calls. Memory taken inside a Scope is returned when the scope ends:
//
//   auto scope = scratch.scope();
//   Tensor h = scratch.take({tokens, D}, DType::bf16);    // 64-byte aligned, contents undefined
//
// On the meta device nothing is handed out and `peak_bytes` is what a real arena must hold. A real arena that is too
// small throws an internal error: the plan and the step took different paths.
class Arena {
 public:
  // Counts only.
  Arena() : device_{DeviceKind::meta} {}
  Arena(Device device, int64_t capacity_bytes);

  Tensor take(const Shape& shape, DType dtype);
  // [rows, columns] for matrix products. Rows that begin a multiple of 4 KiB apart would meet in few sets of a cache
  // (a product that reads down the columns then runs at 60 to 75% of its rate): they get 64 bytes between them.
  Tensor take_rows(int64_t rows, int64_t columns, DType dtype);
  // Elements from one of those rows to the next.
  static int64_t row_stride(int64_t columns, DType dtype);
  Device device() const { return device_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset() { used_bytes_ = 0; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_bytes_) {}
    ~Scope() { arena_.used_bytes_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };
  Scope scope() { return Scope(*this); }

 private:
  Device device_;
  Buffer buffer_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace keel
