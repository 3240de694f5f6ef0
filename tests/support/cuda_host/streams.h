// Streams that run nothing until somebody waits for them: work that is used before its stream was waited for is seen to
// be missing. Each runs its work in order.
#pragma once

#include <driver_types.h>

#include <chrono>
#include <functional>

#include "tests/support/cuda_host/block.h"

namespace keel::cuda_host {

using Work = std::function<void()>;
// Work that needs other processes: called again and again until it says that it is done.
using Turn = std::function<bool()>;

// Lives while a call of the library runs: is_inside_cuda_host() tells tests that count what Keel allocates.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};
extern "C" bool is_inside_cuda_host();

// Null is the default stream of the current device. cudaErrorInvalidResourceHandle for an unknown one.
cudaError_t enqueue(cudaStream_t stream, Work work);
cudaError_t enqueue_exchange(cudaStream_t stream, Turn turn);
// Checks the launch and enqueues it.
cudaError_t launch_kernel(cudaStream_t stream, Kernel kernel);
// Runs everything that was started, on all streams.
cudaError_t drain_all();
// Runs what was started up to every exchange that is older than `patience`, as far as that goes now. A device does not
// need its host for that, and other processes wait for it.
void advance_exchanges(std::chrono::milliseconds patience);
// What exchanges with other processes stays where it is from here on.
void stop_exchanges();

// -1 for an unknown one.
int device_of_stream(cudaStream_t stream);
// Of the calling thread.
int current_device();
void set_current_device(int device);

// Records the error for cudaGetLastError, as every call of the runtime does, and returns it.
cudaError_t with_error(cudaError_t error);
// The error that every call returns after a fault; cudaSuccess before.
cudaError_t broken();
// After a fault was expected: everything works again. For tests of the stand-in itself.
void recover();

}  // namespace keel::cuda_host
