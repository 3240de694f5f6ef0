// Numbers as the formats store them.
#pragma once

#include <string>

namespace keel::data {

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace keel::data
