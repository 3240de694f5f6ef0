#include "framework/tensor/gpu_architectures.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

namespace keel {
namespace {

bool runs_on(const std::string& architecture, int capability) {
  int made_for = 0;
  const char* end = architecture.data() + architecture.size();
  const auto [rest, failure] = std::from_chars(architecture.data(), end, made_for);
  if (failure != std::errc()) return true;  // CMake's "native", "all" and "all-major": the driver knows
  return rest == end ? made_for <= capability : made_for == capability;
}

}  // namespace

std::string missing_kernels(const Gpu& gpu, const std::string& compiler) {
  const size_t list = compiler.find(" for ");
  if (list == std::string::npos) return {};  // no list: a build without CUDA
  const std::string architectures = compiler.substr(list + 5);
  const int capability = 10 * gpu.capability_major + gpu.capability_minor;
  std::istringstream words(architectures);
  for (std::string one; std::getline(words, one, ';');)
    if (runs_on(one, capability)) return {};
  const std::string wanted = fmt::format("{}{}", capability, capability == 90 ? "a" : "");
  return fmt::format(
      "{} has compute capability {}.{}, and this build has kernels for {} only: build with "
      "-DKEEL_CUDA_ARCHITECTURES={}, a bundle with launch/gpu-bundle.sh {}",
      gpu.name, gpu.capability_major, gpu.capability_minor, architectures, wanted, wanted);
}

}  // namespace keel
