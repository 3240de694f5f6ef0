#include "launch/common/choose_device.h"

#include "framework/base/build_config.h"
#include "framework/base/log.h"
#include "framework/tensor/gpu.h"

namespace keel {

Device choose_device(const config::RunConfig& run, comm::World& world) {
  if (run.device.is_auto()) {
    const comm::GpuLack lack = world.find_gpu_lack();
    if (lack.surprising && !lack.why.empty() && world.rank() == 0)
      log::warning("device: auto is the CPU here: {}", lack.why);
    if (!lack.why.empty()) return {};
  } else if (run.device.value() == config::DeviceKind::cpu) {
    return {};
  }
  if (!KEEL_HAS_CUDA)
    throw run.source["device"].error("cuda, but this build has no CUDA: configure with the preset cuda, or choose cpu");
  const Device device = world.use_gpu();
  const Gpu gpu = cuda::describe_gpu(device.index);
  log::info("on {} ({})", device.text(), gpu.name);
  return device;
}

}  // namespace keel
