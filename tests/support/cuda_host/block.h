// Executes the blocks of a kernel: one fiber per thread, resumed until it waits for others or ends, warp after warp in
// shuffled order.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <source_location>

namespace keel::cuda_host {

struct Kernel {
  std::function<void()> body;  // what one thread does
  dim3 grid, block;
  size_t shared_bytes = 0;
};

constexpr unsigned kWarp = 32;

// Copies to shared memory that the thread has not waited for (async_copies.h).
struct AsyncCopies {
  struct One {
    void* to;
    const void* from;
    unsigned bytes, valid_bytes;
    unsigned group;
  };
  std::deque<One> waiting;
  unsigned groups = 0;  // committed so far
};

// What a thread of a kernel knows of itself.
struct Thread {
  uint3 index{};
  uint3 block_index{};
  dim3 block_size, grid_size;
  unsigned number = 0;  // within the block, x fastest
  std::byte* shared = nullptr;
  AsyncCopies copies;

  unsigned lane() const { return number % kWarp; }
};

// The thread that runs on this fiber; null on the host.
Thread* running();
// The same; a fault of the caller outside kernels.
Thread& this_thread();

// Waits until every thread of the block is here. All must call it from one place.
void block_barrier(const std::source_location& place);

// Waits until all lanes of `mask` are here with the same mask and operation; the last one calls
// operation(arguments, mask), with each lane's argument, before any goes on.
using WarpOperation = void (*)(void* const* arguments, unsigned mask);
void warp_collective(unsigned mask, WarpOperation operation, void* argument, const std::source_location& place);

// Runs one block of a kernel on the calling OS thread. What a fresh byte of shared memory holds is up to `run` (0 or
// 1), the order of the threads up to `seed`. A fault is recorded; the block's threads are then ended.
void run_block(const Kernel& kernel, uint3 block_index, uint64_t seed, int run);

}  // namespace keel::cuda_host
