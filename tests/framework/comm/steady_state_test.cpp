// After first use, verbs allocate nothing, on the host or the GPU. What CUDA and NCCL (or their stand-in) allocate
// inside a call does not count.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "framework/comm/mpi.h"
#include "framework/comm/nccl.h"
#include "tests/support/device.h"

// Of the stand-in (tests/support/cuda_host/streams.h): the calling thread is inside CUDA or NCCL.
extern "C" [[gnu::weak]] bool is_inside_cuda_host();

namespace {

std::atomic<int64_t> allocations = 0;
thread_local bool counting = false;

void* counted(size_t bytes) {
  if (counting && !(is_inside_cuda_host && is_inside_cuda_host())) ++allocations;
  if (void* address = std::malloc(bytes)) return address;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) {
  return counted(bytes);
}
void operator delete(void* address) noexcept {
  std::free(address);
}
void operator delete(void* address, size_t) noexcept {
  std::free(address);
}

namespace keel::comm {
namespace {

TEST(SteadyState, StartedVerbsAllocateNothing) {
  Device device = keel::testing::test_device();
  auto group = make_mpi_communicator(MPI_COMM_WORLD);
  if (device.kind == DeviceKind::cuda) {
    device.index = group->rank();
    group = make_nccl_communicator(std::move(group), device);
  }
  const int n = group->size(), next = (group->rank() + 1) % n, previous = (group->rank() + n - 1) % n;
  OwnedTensor x({10000 * n}, DType::f32, device), part({10000}, DType::f32, device),
      y({10000 * n}, DType::bf16, device), z({10000 * n}, DType::f32, device), message({500}, DType::i32, device),
      answer({500}, DType::i32, device);
  auto step = [&] {
    Request first = group->start_all_reduce(x, x), second = group->start_all_reduce(y, y);
    Request third = group->start_reduce_scatter(part, z);
    Request to = group->start_send(message, next), from = group->start_recv(answer, previous);
    second.wait();
    third.wait();
    group->all_gather(z, part);
    group->all_to_all(z, x);
    group->broadcast(answer, 0);
    group->all_reduce(y, Reduction::max);
    group->barrier();
    group->poll();
    all_reduce_value(*group, 1.0);
  };
  counting = true;
  for (int i = 0; i < 3; ++i) step();
  const int64_t before = allocations;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(allocations - before, 0);
  counting = false;
  Stream::current(device).synchronize();
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace keel::comm
