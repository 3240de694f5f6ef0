#include "framework/tensor/tensor.h"

namespace keel {

ConstTensor::ConstTensor(const void* data, const Shape& shape, DType dtype, Device device)
    : data_(const_cast<void*>(data)), shape_(shape), dtype_(dtype), device_(device), defined_(true) {
  int64_t stride = 1;
  for (int dim = shape.dims() - 1; dim >= 0; --dim) {
    strides_[dim] = stride;
    stride *= shape[dim];
  }
}

bool ConstTensor::contiguous() const {
  int64_t stride = 1;
  for (int dim = dims() - 1; dim >= 0; --dim) {
    if (shape_[dim] != 1 && strides_[dim] != stride) return false;
    stride *= shape_[dim];
  }
  return true;
}

ConstTensor ConstTensor::reshaped(const Shape& shape) const {
  require(contiguous(), "a strided tensor {} cannot be reshaped to {}", shape_, shape);
  require(shape.elements() == elements(), "{} has {} elements, {} has {}", shape_, elements(), shape, shape.elements());
  return ConstTensor(data_, shape, dtype_, device_);
}

ConstTensor ConstTensor::slice(int dim, int64_t begin, int64_t end) const {
  if (dim < 0) dim += dims();
  require(dim < dims() && 0 <= begin && begin <= end && end <= shape_[dim], "[{}, {}) of dim {} is outside {}", begin,
          end, dim, shape_);
  ConstTensor view = *this;
  view.shape_[dim] = end - begin;
  if (data_) view.data_ = static_cast<std::byte*>(data_) + begin * strides_[dim] * bytes_of(dtype_);
  return view;
}

}  // namespace keel
