#include "launch/common/device_sheet.h"

#include <unistd.h>

#include <array>
#include <cctype>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "framework/base/error.h"
#include "framework/base/process.h"
#include "framework/base/text.h"
#include "framework/comm/mpi.h"
#include "framework/ops/matmul/product_rate.h"

namespace keel {
namespace {

// Dense peaks (fp32 without TF32) and bandwidths of the maker's data sheets: "NVIDIA H200 / H100 / A100 Tensor Core
// GPU", SXM forms; "NVIDIA HGX B200" (an eighth of its 8 GPUs' sums, half of what it gives with sparsity), memory of
// "NVIDIA DGX B200"; "NVIDIA GH200 Grace Hopper Superchip", the form with less memory. The network is one 400 Gbit/s
// port per GPU (200 for the A100). A process on a GPU holds about 0.5 GB of context and library memory
// there, and up to 0.1 GB of partial sums of attention (KeySlots: about four blocks of 128 keys for each
// multiprocessor).
const std::array<DeviceSheet, 5> kGpus = {
    DeviceSheet{"b200", true, 180e9, 2250e12, 75e12, 8.0e12, 900e9, 50e9, 8, 0.6e9, 0.5e9},
    DeviceSheet{"gh200", true, 96e9, 989e12, 67e12, 4.0e12, 450e9, 50e9, 1, 0.6e9, 0.5e9},
    DeviceSheet{"h200", true, 141e9, 989e12, 67e12, 4.8e12, 450e9, 50e9, 8, 0.6e9, 0.5e9},
    DeviceSheet{"h100", true, 80e9, 989e12, 67e12, 3.35e12, 450e9, 50e9, 8, 0.6e9, 0.5e9},
    DeviceSheet{"a100", true, 80e9, 312e12, 19.5e12, 2.0e12, 300e9, 25e9, 8, 0.6e9, 0.5e9}};

// What a step allocates outside of the model's own memory: oneDNN's primitives and its scratch per thread, attention's
// tiles, files and telemetry. Measured on small models: 30 MB.
constexpr double kLibraries_bytes = 30e6;

DeviceSheet this_machine() {
  const double pages = double(::sysconf(_SC_PHYS_PAGES)) * double(::sysconf(_SC_PAGE_SIZE));
  DeviceSheet cpu{.name = "cpu", .memory_bytes = pages};
  cpu.program_bytes = double(resident_bytes()) + kLibraries_bytes;
  cpu.exchange_bytes = double(comm::MpiOptions().scratch_bytes);
  cpu.bf16_rate = ops::measure_product_rate(DType::bf16, {.size = 1024, .seconds = 0.3});
  cpu.fp32_rate = ops::measure_product_rate(DType::f32, {.size = 1024, .seconds = 0.3});
  cpu.memory_rate = 10e9;  // of a few cores; a server has more
  cpu.link_rate = 3e9;     // a copy through shared memory
  cpu.network_rate = 1e9;
  return cpu;
}

}  // namespace

const DeviceSheet* known_gpu(const std::string& product) {
  std::set<std::string> words;
  std::string word;
  for (char c : product + " ") {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += char(std::tolower(static_cast<unsigned char>(c)));
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  for (const char* lower : {"pcie", "nvl", "mig"})  // forms of lower rates, and a part of a GPU
    if (words.contains(lower)) return nullptr;
  for (const DeviceSheet& gpu : kGpus)
    if (words.contains(gpu.name)) return &gpu;
  return nullptr;
}

DeviceSheet shared_by(int64_t ranks, DeviceSheet machine) {
  for (double* whole : {&machine.memory_bytes, &machine.bf16_rate, &machine.fp32_rate, &machine.memory_rate})
    *whole /= double(ranks);
  machine.ranks_per_host = int(ranks);
  return machine;
}

DeviceSheet device_sheet(const std::string& name, int64_t ranks) {
  std::vector<std::string> names = {"cpu"};
  for (const DeviceSheet& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    names.push_back(gpu.name);
  }
  if (name == "cpu") return shared_by(ranks, this_machine());
  throw input_error("--device {}: known are {}{}", name, fmt::join(names, ", "), did_you_mean(name, names, "; "));
}

}  // namespace keel
