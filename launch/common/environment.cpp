#include "launch/common/environment.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/build_config.h"
#include "framework/comm/nccl.h"
#include "framework/io/files.h"
#include "framework/io/hdf5.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/tensor/gpu.h"

namespace keel {
namespace {

// The value of the first line of /proc/cpuinfo that starts with one of the names.
std::string cpuinfo(std::initializer_list<std::string_view> names) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    for (std::string_view name : names)
      if (line.starts_with(name) && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return {};
}

std::string device_text(Device device) {
  if (device.kind != DeviceKind::cuda) return "cpu";
  return fmt::format("{}; {}; NCCL {}", cuda::describe_gpu(device.index).name, cuda::cuda_versions(),
                     comm::nccl_versions());
}

}  // namespace

std::string cpu_model() {
  const std::string model = cpuinfo({"model name", "CPU part", "Processor"});
  return model.empty() ? "unknown" : model;
}

std::string cpu_features() {
  const std::string flags = " " + cpuinfo({"flags", "Features"}) + " ";
  std::string found;
  for (std::string_view feature : {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve"})
    if (flags.find(fmt::format(" {} ", feature)) != std::string::npos)
      found += (found.empty() ? "" : " ") + std::string(feature);
  return found.empty() ? "none of those that matter here" : found;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  KEEL_MPI(MPI_Get_library_version(text, &length));
  const std::string version(text, size_t(length));
  return version.substr(0, version.find(','));
}

std::string hdf5_version() {
  return fmt::format("{}.{}.{}, {}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE,
                     io::parallel_hdf5() ? "parallel" : "serial");
}

std::string build_identity() {
  return fmt::format("{} {} {:08x}", KEEL_VERSION, KEEL_COMMIT,
                     io::crc32c_of_file("/proc/self/exe", uint64_t(1) << 30));
}

std::vector<int64_t> ranks_per_host(const std::vector<std::string>& hosts) {
  std::vector<int64_t> counts;
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    if (std::find(hosts.begin(), hosts.begin() + ptrdiff_t(rank), hosts[rank]) == hosts.begin() + ptrdiff_t(rank))
      counts.push_back(std::ranges::count(hosts, hosts[rank]));
  return counts;
}

std::string environment_text(comm::World& world, Device device, const config::Layout& layout) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank)
    hosts.push_back(comm::broadcast_text(world.all(), world.host(), rank));
  const nlohmann::ordered_json environment = {{"version", KEEL_VERSION},
                                              {"commit", KEEL_COMMIT},
                                              {"compiler", KEEL_COMPILER},
                                              {"build", KEEL_BUILD_TYPE},
                                              {"hosts", hosts},
                                              {"ranks_per_host", ranks_per_host(hosts)},
                                              {"threads", world.threads()},
                                              {"cpu", cpu_model()},
                                              {"cpu_features", cpu_features()},
                                              {"products", ops::product_backend()},
                                              {"device", device_text(device)},
                                              {"tensor_ranks", layout.tensor},
                                              {"data_ranks", layout.data},
                                              {"mpi", mpi_version()},
                                              {"hdf5", hdf5_version()}};
  return environment.dump(2) + "\n";
}

std::vector<std::string> environment_changes(const std::string& stored, const std::string& now) {
  const auto then = nlohmann::ordered_json::parse(stored, nullptr, false), here = nlohmann::ordered_json::parse(now);
  std::vector<std::string> changes;
  if (!then.is_object()) return changes;
  for (const auto& [key, value] : here.items())
    if (key != "hosts" && then.contains(key) && then[key] != value)
      changes.push_back(fmt::format("{}: {} -> {}", key, then[key].dump(), value.dump()));
  return changes;
}

}  // namespace keel
