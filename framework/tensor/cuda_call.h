// Every call of the CUDA runtime is written KEEL_CUDA(call): a failure throws, naming the call and the runtime's words.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

#include "framework/base/error.h"
#include "framework/tensor/device.h"

namespace keel::cuda {

inline void check(cudaError_t result, const char* call, std::source_location where = std::source_location::current()) {
  if (result == cudaSuccess) [[likely]]
    return;
  throw Error(ErrorKind::internal,
              fmt::format("{}: {} ({})", call, cudaGetErrorString(result), cudaGetErrorName(result)), where);
}

// The stream that the calling thread's ops run on (Stream::current), as CUDA's own type. Makes the device current.
cudaStream_t current_stream(Device device);
// How many multiprocessors the device has: grids are sized from it.
int multiprocessors(Device device);
// How much shared memory a block may have that opts in.
size_t shared_bytes_per_block(Device device);
// At least `size_bytes` of the device's memory for the partial results of one op on the current stream, 256-byte
// aligned; contents undefined. It grows at first use and stays, so that later calls allocate nothing.
std::byte* workspace(Device device, int64_t size_bytes);

}  // namespace keel::cuda

#define KEEL_CUDA(call) ::keel::cuda::check((call), #call)
