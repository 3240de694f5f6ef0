// A view of memory: address, sizes, strides, element type, device. Views own nothing and are passed by value.
#pragma once

#include <array>
#include <cstddef>

#include "framework/tensor/device.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/shape.h"

namespace keel {

// Read-only. Strides are in elements; the last dim is always dense (stride 1). An undefined tensor (default
// constructed) stands for an absent optional argument.
class ConstTensor {
 public:
  ConstTensor() = default;
  ConstTensor(const void* data, const Shape& shape, DType dtype, Device device = {});

  bool defined() const { return defined_; }
  const Shape& shape() const { return shape_; }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim < 0 ? dim + shape_.dims() : dim]; }
  int dims() const { return shape_.dims(); }
  int64_t elements() const { return shape_.elements(); }
  int64_t size_bytes() const { return elements() * bytes_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool contiguous() const;

  // The address as T; throws when T is not the element type.
  template <class T>
  const T* as() const {
    require(dtype_of<T>() == dtype_, "a {} tensor was read as {}", name_of(dtype_), name_of(dtype_of<T>()));
    return static_cast<const T*>(data_);
  }
  const void* data() const { return data_; }

  // The same elements with other sizes. A strided tensor may be cut within its dense dims, not across them.
  ConstTensor reshaped(const Shape& shape) const;
  // Elements [begin, end) of one dim.
  ConstTensor slice(int dim, int64_t begin, int64_t end) const;
  // Element i of the first dim, without that dim.
  ConstTensor row(int64_t i) const;
  // [elements]
  ConstTensor flat() const { return reshaped({elements()}); }

 protected:
  void* data_ = nullptr;
  Shape shape_;
  std::array<int64_t, Shape::kMaxDims> strides_{};
  DType dtype_ = DType::f32;
  Device device_;
  bool defined_ = false;
};

// Writable.
class Tensor : public ConstTensor {
 public:
  Tensor() = default;
  Tensor(void* data, const Shape& shape, DType dtype, Device device = {}) : ConstTensor(data, shape, dtype, device) {}

  template <class T>
  T* as() const {
    return const_cast<T*>(ConstTensor::as<T>());
  }
  void* data() const { return data_; }
  Tensor reshaped(const Shape& shape) const { return Tensor(ConstTensor::reshaped(shape)); }
  Tensor slice(int dim, int64_t begin, int64_t end) const { return Tensor(ConstTensor::slice(dim, begin, end)); }
  Tensor row(int64_t i) const { return Tensor(ConstTensor::row(i)); }
  Tensor flat() const { return Tensor(ConstTensor::flat()); }

 private:
  explicit Tensor(const ConstTensor& view) : ConstTensor(view) {}
};

}  // namespace keel
