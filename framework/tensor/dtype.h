// Element types. bf16 is the upper half of an fp32, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace keel {

struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t(word >> 16 | 0x40u) : uint16_t((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

enum class DType : uint8_t { f32, bf16, i32, i64, f64 };

constexpr int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    default:
      return 8;
  }
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "int32", "int64", "fp64"};
  return kNames[static_cast<int>(dtype)];
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}

}  // namespace keel
