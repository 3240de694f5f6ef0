// The CUDA runtime calls that Keel uses, besides streams and events (streams.cpp).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "tests/support/cuda_host/faults.h"
#include "tests/support/cuda_host/launch.h"
#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/settings.h"
#include "tests/support/cuda_host/stream_state.h"

using namespace keel::cuda_host;

namespace {

constexpr size_t kReservedSharedBytes = 1024;  // of each block
constexpr int kMostThreadsPerMultiprocessor = 2048;

enum class Side { device, pinned, pageable, wrong };

// What all bytes are. `wrong`: partly in an allocation, or in one that was freed.
Side side_of(const void* address, size_t bytes) {
  if (lies_in(address, bytes, MemoryKind::device)) return Side::device;
  if (lies_in(address, bytes, MemoryKind::pinned)) return Side::pinned;
  return is_known(address) ? Side::wrong : Side::pageable;
}

bool fits(cudaMemcpyKind kind, Side to, Side from) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return to != Side::device && from != Side::device;
    case cudaMemcpyHostToDevice:
      return to == Side::device && from != Side::device;
    case cudaMemcpyDeviceToHost:
      return to != Side::device && from == Side::device;
    default:
      return to == Side::device && from == Side::device;
  }
}

struct Rows {
  void* to;
  size_t to_stride_bytes;
  const void* from;
  size_t from_stride_bytes, row_bytes, rows;

  size_t span(size_t stride_bytes) const { return rows == 0 ? 0 : (rows - 1) * stride_bytes + row_bytes; }
};

void move(const Rows& copy) {
  DeviceAccess access;
  for (size_t row = 0; row < copy.rows; ++row)
    std::memcpy(static_cast<std::byte*>(copy.to) + row * copy.to_stride_bytes,
                static_cast<const std::byte*>(copy.from) + row * copy.from_stride_bytes, copy.row_bytes);
}

// Ordinary memory is read before the call returns, and written before it returns; pinned memory when the stream gets
// there.
cudaError_t start_copy(const Rows& copy, cudaMemcpyKind kind, cudaStream_t stream) {
  const Inside inside;
  const Side to = side_of(copy.to, copy.span(copy.to_stride_bytes));
  const Side from = side_of(copy.from, copy.span(copy.from_stride_bytes));
  const bool strides_fit =
      copy.rows <= 1 || (copy.to_stride_bytes >= copy.row_bytes && copy.from_stride_bytes >= copy.row_bytes);
  if (to == Side::wrong || from == Side::wrong || !fits(kind, to, from) || !strides_fit)
    return with_error(cudaErrorInvalidValue);
  const bool pageable = to == Side::pageable || from == Side::pageable;
  cudaError_t error = pageable ? refuse_where_captured(stream, "a copy of memory that is not pinned") : cudaSuccess;
  if (error == cudaSuccess) error = enqueue(stream, [copy] { move(copy); });
  if (error != cudaSuccess) return error;
  return pageable ? cudaStreamSynchronize(stream) : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (const cudaError_t error = refuse_while_capturing("cudaMalloc"); error != cudaSuccess) return error;
  explain_segmentation_faults();
  if (broken() != cudaSuccess) return with_error(broken());
  *address = bytes == 0 ? nullptr : allocate(bytes, MemoryKind::device, current_device());
  return with_error(*address || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* address) {
  if (const cudaError_t error = refuse_while_capturing("cudaFree"); error != cudaSuccess) return error;
  const cudaError_t error = drain_all();  // as the real one waits for the device
  if (address && !release(address, MemoryKind::device)) return with_error(cudaErrorInvalidValue);
  return error;
}

cudaError_t cudaMallocHost(void** address, size_t bytes) {
  if (const cudaError_t error = refuse_while_capturing("cudaMallocHost"); error != cudaSuccess) return error;
  explain_segmentation_faults();
  *address = allocate(bytes, MemoryKind::pinned);
  return with_error(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* address) {
  if (const cudaError_t error = refuse_while_capturing("cudaFreeHost"); error != cudaSuccess) return error;
  const cudaError_t error = drain_all();
  if (address && !release(address, MemoryKind::pinned)) return with_error(cudaErrorInvalidValue);
  return error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return start_copy({to, bytes, from, bytes, bytes, 1}, kind, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = refuse_while_capturing("cudaMemcpy"); error != cudaSuccess) return error;
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride_bytes, const void* from, size_t from_stride_bytes,
                              size_t row_bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return start_copy({to, to_stride_bytes, from, from_stride_bytes, row_bytes, rows}, kind, stream);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && side_of(address, bytes) != Side::device) return with_error(cudaErrorInvalidValue);
  return enqueue(stream, [=] {
    DeviceAccess access;
    std::memset(address, value, bytes);
  });
}

// Returns before it is done, as for device memory the real one does.
cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  if (const cudaError_t error = refuse_while_capturing("cudaMemset"); error != cudaSuccess) return error;
  return cudaMemsetAsync(address, value, bytes, nullptr);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - allocated_bytes();
  return with_error(broken());
}

cudaError_t cudaGetDeviceCount(int* count) {
  module_loading();
  if (driver_version() < CUDART_VERSION) return with_error(cudaErrorInsufficientDriver);
  *count = device_count();
  return *count > 0 ? cudaSuccess : with_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return with_error(cudaErrorInvalidDevice);
  set_current_device(device);
  return with_error(broken());
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = refuse_while_capturing("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  return drain_all();
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= device_count()) return with_error(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = int(most_shared_bytes());
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = int(most_shared_bytes() + kReservedSharedBytes);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = compute_capability() / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = compute_capability() % 10;
      return cudaSuccess;
    default:
      return with_error(cudaErrorInvalidValue);
  }
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool known = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
  return known && value >= 0 && size_t(value) <= most_shared_bytes() ? cudaSuccess : with_error(cudaErrorInvalidValue);
}

// By shared memory and threads; registers are not known here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared_bytes) {
  *blocks = std::min(int((most_shared_bytes() + kReservedSharedBytes) / (shared_bytes + kReservedSharedBytes)),
                     kMostThreadsPerMultiprocessor / threads);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return with_error(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "H200 stand-in on the CPU");
  // The same device has one identity in all processes.
  const int physical = physical_device(device);
  std::memcpy(properties->uuid.bytes, "keel-cuda-host", 14);
  properties->uuid.bytes[15] = char(physical);
  properties->pciBusID = physical + 1;
  properties->major = compute_capability() / 10;
  properties->minor = compute_capability() % 10;
  properties->totalGlobalMem = kDeviceBytes;
  properties->multiProcessorCount = kMultiprocessors;
  properties->maxThreadsPerBlock = int(kMostThreads);
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = most_shared_bytes();
  properties->sharedMemPerMultiprocessor = most_shared_bytes() + kReservedSharedBytes;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerMultiProcessor = kMostThreadsPerMultiprocessor;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge:
      return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched:
      return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit:
      return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread:
      return "cudaErrorStreamCaptureWrongThread";
    default:
      return "an error that this stand-in never returns";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  thread_local std::string sentence;
  const bool of_capture = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  sentence = error == cudaErrorLaunchFailure ? recorded_fault() : of_capture ? refusal() : cudaGetErrorName(error);
  return sentence.c_str();
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}

}  // extern "C"
