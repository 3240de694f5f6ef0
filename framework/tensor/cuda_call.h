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
size_t shared_bytes_per_multiprocessor(Device device);
// How many blocks of a kernel a multiprocessor holds at once.
int blocks_per_multiprocessor(Device device, const void* kernel, int threads, size_t shared_bytes);
// At least `size_bytes` for one op's partial results on the current stream, 256-byte aligned; contents undefined. It
// grows at first use, so that later calls allocate nothing. Outgrown ones stay: recorded graphs (graph.h) use them.
std::byte* workspace(Device device, int64_t size_bytes);

// Before a kernel, a product, a copy or a verb is started: as long as the thread has wait guards, it keeps some
// hundreds of them ahead of its GPU at most, and waits under their eyes. A driver's full queue would keep it where
// nobody looks.
void limit_run_ahead(cudaStream_t stream);

}  // namespace keel::cuda

#define KEEL_CUDA(call) ::keel::cuda::check((call), #call)
