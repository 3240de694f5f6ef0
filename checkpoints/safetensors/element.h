// The element types of safetensors files that hold weights, to and from fp32: reading is exact, writing rounds to
// nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace keel::checkpoints::safetensors {

enum class Element { f32, bf16, f16 };

int64_t bytes_of(Element type);
// As files spell it: "F32", "BF16", "F16"; nothing for every other type.
std::string_view name_of(Element type);
std::optional<Element> element_named(std::string_view name);
// Bytes of one element of any type that the format knows, integers included; 0 where it does not know the name.
int64_t bytes_of_any(std::string_view name);

// values.size() elements from little-endian bytes at any address.
void to_float(std::span<float> values, const char* bytes, Element type);
// The first finite value that would round to infinity in this type.
std::optional<float> first_too_large(std::span<const float> values, Element type);
// Appends the values' bytes.
void append_bytes(std::string& bytes, std::span<const float> values, Element type);

}  // namespace keel::checkpoints::safetensors
