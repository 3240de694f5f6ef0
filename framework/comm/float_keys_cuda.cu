#include <device/launch.h>
#include <device/thread.h>

#include <algorithm>

#include "framework/comm/float_keys_cuda.h"

namespace keel::comm::cuda {
namespace {

constexpr int kThreads = 256;

// Sign and magnitude to two's complement, and back: its own inverse.
template <class Key>
__device__ __forceinline__ Key folded(Key bits) {
  constexpr Key kMagnitude = Key(~(uint64_t(1) << 63) >> (64 - 8 * sizeof(Key)));
  return bits < 0 ? bits ^ kMagnitude : bits;
}

// Floats of 16, 32 and 64 bits as keys: the upper bits of a key are the float's.
template <class Bits, class Key>
__device__ __forceinline__ Key key_of(Bits bits, Key infinity) {
  constexpr int kShift = 8 * int(sizeof(Key) - sizeof(Bits));
  const Key key = folded(Key(Key(bits) << kShift));
  return key > infinity || key < ~infinity ? Key(infinity | (infinity >> 1)) : key;
}

template <class F>
__device__ __forceinline__ void for_each(int64_t n, const F& f) {
  const int64_t first = int64_t(device::block_index().x) * kThreads + device::thread_index().x;
  for (int64_t i = first; i < n; i += int64_t(device::grid_size().x) * kThreads) f(i);
}

template <class Bits, class Key>
__global__ void __launch_bounds__(kThreads) make_keys(Key* keys, const Bits* floats, int64_t n, Key infinity) {
  for_each(n, [&](int64_t i) { keys[i] = key_of(floats[i], infinity); });
}

template <class Bits, class Key>
__global__ void __launch_bounds__(kThreads) make_floats(Bits* floats, const Key* keys, int64_t n) {
  for_each(n, [&](int64_t i) { floats[i] = Bits(folded(keys[i]) >> 8 * int(sizeof(Key) - sizeof(Bits))); });
}

// f.operator()<Bits, Key>(infinity as a key)
template <class F>
void dispatch_bits(DType dtype, const F& f) {
  if (dtype == DType::f32) f.template operator()<uint32_t, int32_t>(0x7f800000);
  if (dtype == DType::bf16) f.template operator()<uint16_t, int32_t>(0x7f800000);
  if (dtype == DType::f64) f.template operator()<uint64_t, int64_t>(0x7ff0000000000000);
}

unsigned blocks_for(Device device, int64_t n) {
  const int64_t most = int64_t(keel::cuda::multiprocessors(device)) * 8;
  return unsigned(std::min((n + kThreads - 1) / kThreads, most));
}

}  // namespace

Tensor float_keys(Tensor room, ConstTensor x) {
  const DType type = x.dtype() == DType::f64 ? DType::i64 : DType::i32;
  const int64_t n = x.elements();
  void* at = room.data();
  if (bytes_of(type) > bytes_of(x.dtype())) at = keel::cuda::workspace(x.device(), n * bytes_of(type));
  dispatch_bits(x.dtype(), [&]<class Bits, class Key>(Key infinity) {
    device::launch(make_keys<Bits, Key>, blocks_for(x.device(), n), kThreads, 0, keel::cuda::current_stream(x.device()),
                   static_cast<Key*>(at), static_cast<const Bits*>(x.data()), n, infinity);
  });
  return Tensor(at, {n}, type, x.device());
}

void floats_of_keys(Tensor x, ConstTensor keys) {
  dispatch_bits(x.dtype(), [&]<class Bits, class Key>(Key) {
    device::launch(make_floats<Bits, Key>, blocks_for(x.device(), x.elements()), kThreads, 0,
                   keel::cuda::current_stream(x.device()), static_cast<Bits*>(x.data()),
                   static_cast<const Key*>(keys.data()), x.elements());
  });
}

}  // namespace keel::comm::cuda
