#include "tests/support/cuda_host/launch.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/settings.h"

namespace keel::cuda_host {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

// As the real runtime: "2,0" are two devices, and a number that does not exist ends the list.
const std::vector<int>& visible_devices() {
  static const std::vector<int> all = [] {
    std::vector<int> found;
    const auto count = int(from_environment("KEEL_CUDA_HOST_DEVICES", 8));
    const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!chosen) {
      found.resize(size_t(count));
      std::iota(found.begin(), found.end(), 0);
      return found;
    }
    std::istringstream list(chosen);
    for (std::string one; std::getline(list, one, ',');) {
      const int number = one.empty() ? -1 : std::atoi(one.c_str());
      if (number < 0 || number >= count) break;
      found.push_back(number);
    }
    return found;
  }();
  return all;
}

// Blocks in the order number * step modulo their count, from a start that the seed gives: step and count have no
// common factor, so each comes once.
struct BlockOrder {
  BlockOrder(int64_t count, uint64_t seed) : count(count), start(int64_t(seed % uint64_t(count))) {
    step = 1 + int64_t((seed >> 20) % uint64_t(count));
    while (std::gcd(step, count) != 1) ++step;
  }
  int64_t operator[](int64_t i) const { return (start + i * step) % count; }
  int64_t count, start, step = 1;
};

void run_grid(const Kernel& kernel, uint64_t seed, int run) {
  const dim3 grid = kernel.grid;
  const BlockOrder order(int64_t(grid.x) * grid.y * grid.z, seed);
#pragma omp parallel for schedule(dynamic) if (order.count > 1)
  for (int64_t i = 0; i < order.count; ++i) {
    const auto block = uint64_t(order[i]);
    if (recorded_fault().empty())
      run_block(kernel,
                {unsigned(block % grid.x), unsigned(block / grid.x % grid.y), unsigned(block / grid.x / grid.y)},
                seed ^ block * 0x9e3779b97f4a7c15u, run);
  }
}

}  // namespace

bool checks_are_on() {
  static const bool on = from_environment("KEEL_CUDA_HOST_CHECK", 1) != 0;
  return on;
}

uint64_t seed() {
  static const auto value = uint64_t(from_environment("KEEL_CUDA_HOST_SEED", 1)) * 0x2545f4914f6cdd1du;
  return value;
}

size_t most_shared_bytes() {
  return size_t(from_environment("KEEL_CUDA_HOST_SHARED_BYTES", int64_t(kMostSharedBytesPerBlock)));
}

int device_count() {
  return int(visible_devices().size());
}

int driver_version() {
  return int(from_environment("KEEL_CUDA_HOST_DRIVER", CUDART_VERSION));
}

int compute_capability() {
  return int(from_environment("KEEL_CUDA_HOST_CAPABILITY", 90));
}

const std::string& module_loading() {
  static const std::string first = std::getenv("CUDA_MODULE_LOADING") ? std::getenv("CUDA_MODULE_LOADING") : "";
  return first;
}

int physical_device(int visible) {
  return visible_devices()[size_t(visible)];
}

cudaError_t check_launch(const Kernel& kernel) {
  const dim3 grid = kernel.grid, block = kernel.block;
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  const bool grid_fits = grid.x <= 0x7fffffffu && grid.y <= kMostBlocksY && grid.z <= kMostBlocksY;
  const bool block_fits = block.x <= kMostThreads && block.y <= kMostThreads && block.z <= 64 &&
                          uint64_t(block.x) * block.y * block.z <= kMostThreads;
  if (empty || !grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
  return kernel.shared_bytes <= most_shared_bytes() ? cudaSuccess : cudaErrorInvalidValue;
}

bool execute(const Kernel& kernel) {
  DeviceAccess access;
  if (!checks_are_on()) {
    run_grid(kernel, seed(), 0);
    return recorded_fault().empty();
  }
  static Snapshot before, after;  // one kernel runs at a time
  before.take();
  run_grid(kernel, seed(), 0);
  if (!recorded_fault().empty()) return false;
  after.take();
  before.restore_with_other_fresh_values();
  run_grid(kernel, ~seed(), 1);
  const std::string difference = after.compare_and_restore();
  if (!difference.empty()) record_fault(difference);
  return recorded_fault().empty();
}

}  // namespace keel::cuda_host
