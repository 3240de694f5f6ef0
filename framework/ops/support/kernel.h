// What the CUDA twins share: element types, wide loads, loops over a grid, sums of a block, grids sized from the
// device. Only .cu files include it.
#pragma once

#include <cuda_bf16.h>
#include <device/launch.h>
#include <device/memory.h>
#include <device/thread.h>
#include <device/warp.h>

#include <algorithm>
#include <cstdint>

#include "framework/tensor/dispatch.h"

namespace keel::ops::cuda {

using device::launch;

// bf16 in kernels is CUDA's type; the bits are those of keel::bf16.
template <class T>
struct DeviceType {
  using Type = T;
};
template <>
struct DeviceType<bf16> {
  using Type = __nv_bfloat16;
};

// f.operator()<T>() with T float or __nv_bfloat16.
template <class F>
void dispatch_device_float(DType dtype, F&& f) {
  dispatch_float(dtype, [&]<class T>() { f.template operator()<typename DeviceType<T>::Type>(); });
}

// The address as T, float or __nv_bfloat16; null for an undefined tensor.
template <class T>
T* at(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}
template <class T>
const T* at(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data());
}

__device__ __forceinline__ float to_float(float value) {
  return value;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// N elements at once; N is 1, or kWide where the addresses are multiples of 16 bytes.
constexpr int kWide = 8;

template <class T, int N>
struct alignas(16) Pack {
  T values[N];
};

template <int N, class T>
__device__ __forceinline__ void load(float (&to)[N], const T* from) {
  if constexpr (N == 1) {
    to[0] = to_float(*from);
  } else {
    constexpr int kPart = 16 / sizeof(T);
#pragma unroll
    for (int part = 0; part < N / kPart; ++part) {
      const auto pack = device::load_vector<Pack<T, kPart>>(from + part * kPart);
#pragma unroll
      for (int i = 0; i < kPart; ++i) to[part * kPart + i] = to_float(pack.values[i]);
    }
  }
}

// Rounds to nearest even.
template <int N, class T>
__device__ __forceinline__ void store(T* to, const float (&from)[N]) {
  if constexpr (N == 1) {
    *to = from_float<T>(from[0]);
  } else {
    constexpr int kPart = 16 / sizeof(T);
#pragma unroll
    for (int part = 0; part < N / kPart; ++part) {
      Pack<T, kPart> pack;
#pragma unroll
      for (int i = 0; i < kPart; ++i) pack.values[i] = from_float<T>(from[part * kPart + i]);
      device::store_vector(to + part * kPart, pack);
    }
  }
}

// How many elements a kernel may take at once: kWide where every address is a multiple of 16 bytes, else 1. Undefined
// tensors fit anything.
template <class... Tensors>
int width_of(const Tensors&... tensors) {
  const bool wide = ((reinterpret_cast<uintptr_t>(tensors.data()) % 16 == 0) && ...);
  return wide ? kWide : 1;
}
// The same for rows that are walked one by one: their starts and ends must fit as well.
template <class... Tensors>
int row_width_of(const Tensors&... tensors) {
  const bool wide = ((tensors.size(-1) % kWide == 0 && tensors.stride(0) % kWide == 0) && ...);
  return wide ? width_of(tensors...) : 1;
}

// f.operator()<N>() with N = kWide or 1.
template <class F>
void dispatch_width(int width, F&& f) {
  width == kWide ? f.template operator()<kWide>() : f.template operator()<1>();
}

// N as a value, so that a kernel's lambda can be called for wide elements and for the rest.
template <int N>
struct Width {
  static constexpr int value = N;
};

// Every element of [0, n) once, by all threads of a one-dimensional grid: f(i, Width<N>) for N elements from i on, then
// f(i, Width<1>) for the rest.
template <int N, class F>
__device__ __forceinline__ void for_elements(int64_t n, const F& f) {
  const int64_t first = int64_t(device::block_index().x) * device::block_size().x + device::thread_index().x;
  const int64_t stride = int64_t(device::grid_size().x) * device::block_size().x;
  const int64_t packs = n / N;
#pragma unroll 1  // the block's other warps hide the wait; registers for eight blocks do not hold two packs
  for (int64_t i = first; i < packs; i += stride) f(i * N, Width<N>());
  if constexpr (N > 1)
    for (int64_t i = packs * N + first; i < n; i += stride) f(i, Width<1>());
}

// The sum over the warp's lanes, in all of them, always in one order.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (unsigned bits = device::kWarp / 2; bits > 0; bits /= 2) value += device::shuffle_xor(value, bits);
  return value;
}

// The sum over the block's threads, in all of them, always in one order. `partial` is shared memory for one T per warp;
// it may be used again after the next barrier. Block sizes are multiples of 32.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* partial) {
  value = warp_sum(value);
  const unsigned warps = device::block_size().x / device::kWarp;
  device::sync_threads();  // nobody still reads what the last sum left there
  if (device::lane() == 0) partial[device::thread_index().x / device::kWarp] = value;
  device::sync_threads();
  T total = 0;
  for (unsigned i = 0; i < warps; ++i) total += partial[i];
  return total;
}

constexpr int kThreads = 256;  // of a block of a streaming kernel

// Blocks of kThreads for a loop of so many steps: enough to fill the device (eight blocks of 256 threads are all
// that a multiprocessor holds), no more than there is work for.
inline unsigned blocks_for(Device device, int64_t steps) {
  const int64_t most = int64_t(keel::cuda::multiprocessors(device)) * 8;
  return unsigned(std::clamp<int64_t>((steps + kThreads - 1) / kThreads, 0, most));
}

}  // namespace keel::ops::cuda
