// Sizes of up to five dims, outermost first, kept by value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "framework/base/error.h"

namespace keel {

class Shape {
 public:
  static constexpr int kMaxDims = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes) : dims_(int(sizes.size())) {
    require(dims_ <= kMaxDims, "a tensor has at most {} dims, not {}", kMaxDims, dims_);
    for (int i = 0; i < dims_; ++i) sizes_[i] = sizes[i];
  }

  int dims() const { return dims_; }
  int64_t operator[](int dim) const { return sizes_[dim < 0 ? dim + dims_ : dim]; }
  int64_t& operator[](int dim) { return sizes_[dim < 0 ? dim + dims_ : dim]; }
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < dims_; ++i) product *= sizes_[i];
    return product;
  }
  std::span<const int64_t> sizes() const { return {sizes_.data(), size_t(dims_)}; }
  bool operator==(const Shape&) const = default;

  // "[8, 128, 384]"
  std::string text() const {
    std::string out = "[";
    for (int i = 0; i < dims_; ++i) out += (i ? ", " : "") + std::to_string(sizes_[i]);
    return out + "]";
  }

 private:
  int dims_ = 0;
  std::array<int64_t, kMaxDims> sizes_{};
};

}  // namespace keel

template <>
struct fmt::formatter<keel::Shape> : fmt::formatter<std::string> {
  auto format(const keel::Shape& shape, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(shape.text(), context);
  }
};
