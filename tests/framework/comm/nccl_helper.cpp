// A program on one GPU per rank that ends in the way its argument names; nccl_test.cpp looks at its exit code and
// lines.
#include <map>
#include <thread>

#include "framework/comm/gpu_choice.h"
#include "framework/comm/world.h"
#include "framework/ops/elementwise.h"
#include "framework/ops/matmul/matmul.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/copy.h"
#include "tests/support/cuda_host/nccl_faults.h"
#include "tests/support/cuda_host/settings.h"

namespace keel::comm {
namespace {

bool last(World& world) {
  return world.rank() == world.size() - 1;
}

void sleep_on_last_rank(World& world) {
  if (last(world)) std::this_thread::sleep_for(std::chrono::seconds(300));
}

// One number of each rank, summed on the GPU and brought to the host.
float summed(World& world, Device device, int64_t elements = 1) {
  std::vector<float> values(size_t(elements), 1);
  const Tensor here(values.data(), {elements}, DType::f32);
  const OwnedTensor there({elements}, DType::f32, device);
  copy(there, here);
  world.all().all_reduce(there);
  copy(here, there);
  return values[0];
}

int fine(World& world) {
  const Device device = world.use_gpu();
  for (int step = 0; step < 100; ++step)
    require(summed(world, device) == float(world.size()), "the sum is {}", summed(world, device));
  std::printf("rank %d on %s\n", world.rank(), device.text().c_str());
  return 0;
}

int loading(World& world) {
  world.use_gpu();
  std::printf("kernels are loaded %s\n", cuda_host::module_loading().c_str());
  return 0;
}

// The others find out as they wait for the copy to the host.
int late(World& world) {
  const Device device = world.use_gpu();
  world.all().set_time_limit(0.5);
  sleep_on_last_rank(world);
  return int(summed(world, device));
}

// The others find out while the host does something else and polls now and then.
int late_while_polling(World& world) {
  const Device device = world.use_gpu();
  world.all().set_time_limit(0.5);
  sleep_on_last_rank(world);
  const OwnedTensor x({1}, DType::f32, device);
  const Request request = world.all().start_all_reduce(x, x);
  for (;;) world.all().poll();
}

// The others fill their GPU's queue behind the sum.
int late_while_launching(World& world) {
  const Device device = world.use_gpu();
  world.all().set_time_limit(0.5);
  sleep_on_last_rank(world);
  const OwnedTensor x({1}, DType::f32, device);
  world.all().all_reduce(x);
  for (;;) ops::fill(x, 1);
}

// The others take memory while a sum is in flight, for which CUDA may wait where nobody looks.
int late_while_allocating(World& world) {
  const Device device = world.use_gpu();
  world.all().set_time_limit(0.5);
  sleep_on_last_rank(world);
  const OwnedTensor x({1}, DType::f32, device);
  const Request request = world.all().start_all_reduce(x, x);
  const Buffer buffer(device, 64);
  std::printf("keel: memory was taken under a sum\n");
  return 0;
}

int late_and_not_to_be_stopped(World& world) {
  cuda_host::hang_nccl_aborts();
  return late(world);
}

// All wait for a message that nobody sends, come to one end, and leave by the ends of all libraries.
int all_late_and_not_to_be_stopped(World& world) {
  cuda_host::hang_nccl_aborts();
  const Device device = world.use_gpu();
  const OwnedTensor x({8, 8}, DType::f32, device), y({8, 8}, DType::f32, device);
  ops::matmul(y, x, x);
  Stream::current(device).synchronize();
  world.all().set_time_limit(0.5);
  world.all().recv(x, 1 - world.rank());
  Stream::current(device).synchronize();
  return 0;
}

int late_at_start(World& world) {
  if (last(world)) choose_gpu(world.all(), world.host(), world.local_rank(), world.local_size());
  sleep_on_last_rank(world);
  world.use_gpu();
  return 0;
}

int aborted_group_stays_aborted(World& world) {
  const Device device = world.use_gpu();
  auto part = world.all().split(0, world.rank(), "part");
  world.all().set_time_limit(0.5);
  const OwnedTensor x({1}, DType::f32, device);
  if (!last(world)) {
    try {
      world.all().all_reduce(x);
      Stream::current(device).synchronize();
    } catch (const Error& error) {
      std::printf("keel: first: %s\n", error.what());
      part->all_reduce(x);
    }
  }
  sleep_on_last_rank(world);
  return 0;
}

int network_fails(World& world) {
  const Device device = world.use_gpu();
  const OwnedTensor x({5}, DType::bf16, device);
  world.all().all_reduce(x);
  if (world.rank() == 0) cuda_host::fail_nccl(ncclRemoteError);
  world.all().barrier();
  for (;;) world.all().poll();
}

int other_counts(World& world) {
  const Device device = world.use_gpu();
  return int(summed(world, device, 100 + world.rank()));
}

// This rank's GPU waits for another one, whose host waits for this one's, which fails: memory must not be waited for.
int fails_with_work_in_flight(World& world) {
  const Device device = world.use_gpu();
  const OwnedTensor x({1}, DType::f32, device);
  if (world.rank() == 0) {
    world.all().all_reduce(x);
    throw input_error("with work in flight");
  }
  world.all().barrier();
  return 0;
}

int fails_with_work_not_to_be_stopped(World& world) {
  cuda_host::hang_nccl_aborts();
  return fails_with_work_in_flight(world);
}

int tensor_elsewhere(World& world) {
  const Device device = world.use_gpu();
  const OwnedTensor x({1}, DType::f32, Device{DeviceKind::cuda, device.index + 1});
  world.all().all_reduce(x);
  return 0;
}

using Case = std::function<int(World&)>;

const std::map<std::string, Case> kCases = {{"fine", fine},
                                            {"loading", loading},
                                            {"late", late},
                                            {"late_while_polling", late_while_polling},
                                            {"late_while_launching", late_while_launching},
                                            {"late_while_allocating", late_while_allocating},
                                            {"late_and_not_to_be_stopped", late_and_not_to_be_stopped},
                                            {"all_late_and_not_to_be_stopped", all_late_and_not_to_be_stopped},
                                            {"late_at_start", late_at_start},
                                            {"aborted", aborted_group_stays_aborted},
                                            {"network", network_fails},
                                            {"other_counts", other_counts},
                                            {"in_flight", fails_with_work_in_flight},
                                            {"in_flight_not_to_be_stopped", fails_with_work_not_to_be_stopped},
                                            {"elsewhere", tensor_elsewhere}};

}  // namespace
}  // namespace keel::comm

int main(int, char** argv) {
  keel::comm::WorldOptions options;
  options.start_limit_seconds = std::string_view(argv[1]) == "late_at_start" ? 2 : 20;
  return keel::comm::run(options, keel::comm::kCases.at(argv[1]));
}
