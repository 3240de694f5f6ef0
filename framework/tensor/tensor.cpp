#include "framework/tensor/tensor.h"

#include <algorithm>

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
  require(shape.elements() == elements(), "{} has {} elements, {} has {}", shape_, elements(), shape, shape.elements());
  ConstTensor view(data_, shape, dtype_, device_);
  if (contiguous()) return view;
  // From the last: runs of dims that lie densely one in another, which the new dims may cut anywhere.
  int dim = shape.dims() - 1;
  for (int last = dims() - 1, first = last; last >= 0; last = --first) {
    int64_t dense = shape_[last], taken = 1;
    while (first > 0 && strides_[first - 1] == strides_[first] * shape_[first]) dense *= shape_[--first];
    for (; dim >= 0 && taken < dense; --dim) {
      view.strides_[dim] = strides_[last] * taken;
      taken *= shape[dim];
    }
    require(taken == dense, "a strided tensor {} cannot be reshaped to {}", shape_, shape);
  }
  return view;
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

ConstTensor ConstTensor::row(int64_t i) const {
  ConstTensor view = slice(0, i, i + 1);
  view.shape_ = Shape(shape_.sizes().subspan(1));
  std::copy(strides_.begin() + 1, strides_.end(), view.strides_.begin());
  return view;
}

}  // namespace keel
