// After first use, verbs allocate nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "framework/comm/mpi.h"
#include "framework/tensor/buffer.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* address = std::malloc(bytes)) return address;
  throw std::bad_alloc();
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
  auto group = make_mpi_communicator(MPI_COMM_WORLD);
  const int n = group->size(), next = (group->rank() + 1) % n, previous = (group->rank() + n - 1) % n;
  OwnedTensor x({100000 * n}, DType::f32), part({100000}, DType::f32), y({100000 * n}, DType::bf16),
      z({100000 * n}, DType::f32), message({500}, DType::i32), answer({500}, DType::i32);
  auto step = [&] {
    Request first = group->start_all_reduce(x, x), second = group->start_all_reduce(y, y);
    Request third = group->start_reduce_scatter(part, z);
    Request to = group->start_send(message, next), from = group->start_recv(answer, previous);
    second.wait();
    third.wait();
    group->all_gather(z, part);
    group->all_to_all(z, x);
    group->broadcast(answer, 0);
    group->barrier();
    all_reduce_value(*group, 1.0);
  };
  for (int i = 0; i < 3; ++i) step();
  const int64_t before = allocations;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(allocations - before, 0);
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace keel::comm
