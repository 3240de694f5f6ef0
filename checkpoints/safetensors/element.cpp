#include "checkpoints/safetensors/element.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "framework/tensor/dtype.h"

namespace keel::checkpoints::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian, and read as they lie");

// IEEE half precision: 1 sign bit, 5 of exponent (bias 15), 10 of fraction.
float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::nan("");
  return float(bits >> 15 ? -value : value);
}

uint16_t half_of(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(double(value));
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;  // halfway from the largest half to the next power of two
  // Steps of 2^-24 below 2^-14, else 2^(exponent - 10): nearbyint rounds to even in the default mode.
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const int steps = int(std::nearbyint(std::ldexp(size, 10 - exponent)));  // up to 2048, which carries
  const int base = size < 0x1p-14 ? 0 : (exponent + 14) << 10;
  return uint16_t(sign | (base + steps));
}

}  // namespace

int64_t bytes_of(Element type) {
  return type == Element::f32 ? 4 : 2;
}

std::string_view name_of(Element type) {
  constexpr std::string_view kNames[] = {"F32", "BF16", "F16"};
  return kNames[int(type)];
}

std::optional<Element> element_named(std::string_view name) {
  for (Element type : {Element::f32, Element::bf16, Element::f16})
    if (name == name_of(type)) return type;
  return std::nullopt;
}

int64_t bytes_of_any(std::string_view name) {
  static const std::map<std::string_view, int64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = sizes.find(name);
  return found == sizes.end() ? 0 : found->second;
}

void to_float(std::span<float> values, const char* bytes, Element type) {
  if (type == Element::f32) {
    std::memcpy(values.data(), bytes, values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * i, 2);
    values[i] = type == Element::f16 ? half_to_float(bits) : std::bit_cast<float>(uint32_t(bits) << 16);
  }
}

std::optional<float> first_too_large(std::span<const float> values, Element type) {
  if (type == Element::f32) return std::nullopt;
  for (float value : values) {
    const float rounded = type == Element::f16 ? half_to_float(half_of(value)) : float(bf16(value));
    if (std::isfinite(value) && !std::isfinite(rounded)) return value;
  }
  return std::nullopt;
}

void append_bytes(std::string& bytes, std::span<const float> values, Element type) {
  if (type == Element::f32) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return;
  }
  for (float value : values) {
    const uint16_t bits = type == Element::f16 ? half_of(value) : bf16(value).bits;
    bytes.append(reinterpret_cast<const char*>(&bits), 2);
  }
}

}  // namespace keel::checkpoints::safetensors
