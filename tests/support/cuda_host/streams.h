// Streams that run nothing until somebody waits for them: work that is used before its stream was waited for is seen to
// be missing. Each runs its work in order.
#pragma once

#include <driver_types.h>

#include <functional>

#include "tests/support/cuda_host/block.h"

namespace keel::cuda_host {

using Work = std::function<void()>;

// Null is the default stream. cudaErrorInvalidResourceHandle for an unknown one.
cudaError_t enqueue(cudaStream_t stream, Work work);
// Checks the launch and enqueues it.
cudaError_t launch_kernel(cudaStream_t stream, Kernel kernel);
// Runs everything that was started, on all streams.
cudaError_t drain_all();

// Records the error for cudaGetLastError, as every call of the runtime does, and returns it.
cudaError_t with_error(cudaError_t error);
// The error that every call returns after a fault; cudaSuccess before.
cudaError_t broken();
// After a fault was expected: everything works again. For tests of the stand-in itself.
void recover();

}  // namespace keel::cuda_host
