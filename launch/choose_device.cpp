#include "launch/choose_device.h"

#include "framework/base/build_config.h"
#include "framework/base/log.h"
#include "framework/tensor/gpu.h"

namespace keel {

Device choose_device(const config::RunConfig& run, comm::World& world) {
  const bool has_gpu = KEEL_HAS_CUDA && cuda::gpu_count() >= (cuda::gpu_count() == 1 ? 1 : world.local_size());
  bool wanted = false;
  if (run.device.is_auto())
    wanted = comm::lowest_rank_where(world.all(), !has_gpu) == world.size();
  else
    wanted = run.device.value() == config::DeviceKind::cuda;
  if (!wanted) return {};
  if (!KEEL_HAS_CUDA)
    throw run.source["device"].error("cuda, but this build has no CUDA: configure with the preset cuda, or choose cpu");
  const Device device = world.use_gpu();
  const Gpu gpu = cuda::describe_gpu(device.index);
  log::info("on {} ({})", device.text(), gpu.name);
  return device;
}

}  // namespace keel
