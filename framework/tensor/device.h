// Where memory lies and arithmetic runs. `meta` has no memory and runs nothing: a step on the meta device visits every
// allocation of a real one, which is how memory is planned before the first step, and how `keel plan` needs no machine.
#pragma once

#include <fmt/format.h>

#include <string>

namespace keel {

enum class DeviceKind { cpu, cuda, meta };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // the GPU's number within the host

  bool operator==(const Device&) const = default;
  bool is_meta() const { return kind == DeviceKind::meta; }

  std::string text() const {
    if (kind == DeviceKind::cuda) return "cuda:" + std::to_string(index);
    return kind == DeviceKind::cpu ? "cpu" : "meta";
  }
};

}  // namespace keel
