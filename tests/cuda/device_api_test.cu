// The device headers, the same kernels by nvcc and on the stand-in: every call against its plain meaning.
#include <device/math.h>
#include <device/matrix.h>
#include <gtest/gtest.h>

#include "framework/ops/kernel.h"
#include "tests/support/compare.h"

namespace keel::ops::cuda {
namespace {

using namespace keel::testing;

// n elements on the GPU, whatever the device under test.
template <class T>
struct Memory {
  explicit Memory(const std::vector<T>& values)
      : owned({int64_t(values.size())}, dtype_of<T>(), Device{DeviceKind::cuda}) {
    copy(owned, ConstTensor(values.data(), owned.tensor.shape(), dtype_of<T>()));
  }
  std::vector<T> values() const {
    const OnHost host(owned);
    return {host.as<T>(), host.as<T>() + owned.tensor.elements()};
  }
  template <class As = T>
  As* get() const {
    return static_cast<As*>(owned.tensor.data());
  }
  OwnedTensor owned;
};

__global__ void __launch_bounds__(64) indices(int* to) {
  const uint3 thread = device::thread_index(), block = device::block_index();
  const dim3 threads = device::block_size(), blocks = device::grid_size();
  const unsigned in_block = (thread.z * threads.y + thread.y) * threads.x + thread.x;
  const unsigned number = (block.z * blocks.y + block.y) * blocks.x + block.x;
  to[number * threads.x * threads.y * threads.z + in_block] = int(number * 100 + in_block);
}

TEST(DeviceApi, Indices) {
  const Memory<int> to(std::vector<int>(8 * 64, -1));
  launch(indices, dim3(2, 2, 2), dim3(8, 4, 2), 0, nullptr, to.get());
  const std::vector<int> got = to.values();
  for (int i = 0; i < 8 * 64; ++i) ASSERT_EQ(got[size_t(i)], i / 64 * 100 + i % 64);
}

constexpr int kExchanges = 7;

__global__ void __launch_bounds__(64) exchanges(int* to) {
  const unsigned own = device::lane();
  int* out = to + device::thread_index().x * kExchanges;
  out[0] = int(device::shuffle_xor(double(own) + 0.5, 5) * 2);
  out[1] = device::shuffle(int(own), 40);
  out[2] = int(device::ballot(own % 5 == 0));
  out[3] = device::any(own == 31) + 2 * device::any(false);
  out[4] = device::all(own < 32) + 2 * device::all(own < 31);
  out[5] = device::count_bits(own);
  out[6] = own < 16 ? device::shuffle_xor(int(own), 8, 0xffffu) : -1;
  device::sync_warp();
}

TEST(DeviceApi, LanesExchange) {
  const Memory<int> to(std::vector<int>(64 * kExchanges, -7));
  launch(exchanges, 1, 64, 0, nullptr, to.get());
  const std::vector<int> got = to.values();
  for (int thread = 0; thread < 64; ++thread) {
    const int own = thread % 32;
    const std::vector<int> expected{2 * (own ^ 5) + 1,      8, 0x42108421, 1, 1, int(std::popcount(unsigned(own))),
                                    own < 16 ? own ^ 8 : -1};
    for (int i = 0; i < kExchanges; ++i)
      EXPECT_EQ(got[size_t(thread * kExchanges + i)], expected[size_t(i)]) << "thread " << thread << " exchange " << i;
  }
}

// Each thread's share of 1 + 2 + ... in three ways; the second block_sum reuses the shared memory of the first.
__global__ void __launch_bounds__(96) sums(double* to) {
  const unsigned thread = device::thread_index().x;
  auto* partial = device::shared_memory<double>(16);
  const double first = block_sum(double(thread), partial), second = block_sum(double(2 * thread), partial);
  to[3 * thread] = warp_sum(double(device::lane()));
  to[3 * thread + 1] = first;
  to[3 * thread + 2] = second;
}

TEST(DeviceApi, Sums) {
  const Memory<double> to(std::vector<double>(3 * 96, -1));
  launch(sums, 1, 96, 16 + 3 * sizeof(double), nullptr, to.get());
  const std::vector<double> got = to.values();
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(got[3 * i], 31 * 16);
    EXPECT_EQ(got[3 * i + 1], 95 * 48);
    EXPECT_EQ(got[3 * i + 2], 95 * 96);
  }
}

// Two groups in flight; the second group's last 8 bytes are not valid and become zero.
__global__ void __launch_bounds__(32) copy_groups(float* to, const float* from) {
  float* shared = device::shared_memory<float>();
  const unsigned i = device::thread_index().x * 8;
  device::copy_async(shared + i, from + i);
  device::commit_copies();
  device::copy_async(shared + i + 4, from + i + 4, 8);
  device::commit_copies();
  device::wait_copies<1>();
  for (unsigned j = 0; j < 4; ++j) to[i + j] = shared[i + j];
  device::wait_copies<0>();
  device::sync_threads();
  const unsigned other = (i + 8) % 256;
  for (unsigned j = 4; j < 8; ++j) to[other + j] = shared[other + j];
}

TEST(DeviceApi, AsynchronousCopies) {
  std::vector<float> from(256), expected(256);
  for (size_t i = 0; i < 256; ++i) {
    from[i] = float(i + 1);
    expected[i] = i % 8 < 6 ? from[i] : 0;
  }
  const Memory<float> in(from), to(std::vector<float>(256, -1));
  launch(copy_groups, 1, 32, 1024, nullptr, to.get(), in.get());
  EXPECT_EQ(to.values(), expected);
}

// Every third word is not valid and becomes zero.
__global__ void __launch_bounds__(32) copy_words(float* to, const float* from) {
  float* shared = device::shared_memory<float>();
  const unsigned i = device::thread_index().x;
  device::copy_word_async(shared + i, from + i, i % 3 != 0);
  device::commit_copies();
  device::wait_copies<0>();
  device::sync_threads();
  to[i] = shared[(i + 1) % 32];
}

TEST(DeviceApi, AsynchronousCopiesOfWords) {
  std::vector<float> from(32), expected(32);
  for (size_t i = 0; i < 32; ++i) from[i] = float(i + 1);
  for (size_t i = 0; i < 32; ++i) expected[i] = (i + 1) % 32 % 3 == 0 ? 0 : from[(i + 1) % 32];
  const Memory<float> in(from), to(std::vector<float>(32, -1));
  launch(copy_words, 1, 32, 128, nullptr, to.get(), in.get());
  EXPECT_EQ(to.values(), expected);
}

// Each lane's registers of four matrices, plain and transposed.
__global__ void __launch_bounds__(32) matrix_loads(int* to, const int* from) {
  int* shared = device::shared_memory<int>();
  const unsigned lane = device::lane();
  for (unsigned i = lane; i < 128; i += 32) shared[i] = from[i];
  device::sync_warp();
  uint32_t plain[4], turned[4];
  device::load_matrices(plain, shared + lane * 4);
  device::load_matrices_transposed(turned, shared + lane * 4);
  int* out = to + lane * 8;
  for (int i = 0; i < 4; ++i) out[i] = int(plain[i]);
  for (int i = 0; i < 4; ++i) out[4 + i] = int(turned[i]);
}

// Element [row][col] of matrix m holds 64 m + 8 row + col in 16 bits.
TEST(DeviceApi, MatrixLoads) {
  std::vector<int> from;
  for (int i = 0; i < 128; ++i) from.push_back(2 * i | (2 * i + 1) << 16);
  const Memory<int> in(from), to(std::vector<int>(32 * 8, -1));
  launch(matrix_loads, 1, 32, 512, nullptr, to.get(), in.get());
  const std::vector<int> got = to.values();
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int low = 64 * m + 8 * (lane % 4 * 2) + lane / 4;
      EXPECT_EQ(got[size_t(lane * 8 + m)], from[size_t(32 * m + lane)]) << lane << " " << m;
      EXPECT_EQ(got[size_t(lane * 8 + 4 + m)], low | (low + 8) << 16) << lane << " " << m;
    }
}

// One warp: c [16, 8] = 1 + a [16, 16] b [16, 8]. a is loaded as four 8x8 matrices: rows 0-7, rows 8-15, then the right
// halves. b is stored by rows [k][n], so it is loaded transposed. `planted` swaps two of a's registers.
__global__ void __launch_bounds__(32) product(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, bool planted) {
  auto* shared_a = device::shared_memory<__nv_bfloat16>();
  __nv_bfloat16* shared_b = shared_a + 256;
  const unsigned lane = device::lane();
  for (unsigned i = lane; i < 256; i += 32) shared_a[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) shared_b[i] = b[i];
  device::sync_warp();
  uint32_t of_a[4], of_b[4];  // b twice: four matrices are loaded at a time
  float sums[4] = {1, 1, 1, 1};
  device::load_matrices(of_a, shared_a + (lane % 16) * 16 + lane / 16 * 8);
  device::load_matrices_transposed(of_b, shared_b + (lane % 16) * 8);
  if (planted) {
    const uint32_t other = of_a[1];
    of_a[1] = of_a[2];
    of_a[2] = other;
  }
  device::multiply_add(sums, of_a, {of_b[0], of_b[1]});
  for (unsigned i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

TEST(DeviceApi, MatrixProductAndAWrongFragmentIsSeen) {
  std::vector<bf16> a, b;
  for (int i = 0; i < 256; ++i) a.emplace_back(float(i * 37 % 19 - 9));
  for (int i = 0; i < 128; ++i) b.emplace_back(float(i * 53 % 23 - 11));
  std::vector<float> expected(128, 1.f);
  for (size_t row = 0; row < 16; ++row)
    for (size_t col = 0; col < 8; ++col)
      for (size_t k = 0; k < 16; ++k) expected[row * 8 + col] += float(a[row * 16 + k]) * float(b[k * 8 + col]);
  const Memory<bf16> of_a(a), of_b(b);
  const Memory<float> c(std::vector<float>(128, 0.f));
  for (bool planted : {false, true}) {
    launch(product, 1, 32, 768, nullptr, c.get(), of_a.get<__nv_bfloat16>(), of_b.get<__nv_bfloat16>(), planted);
    EXPECT_EQ(c.values() == expected, !planted);
  }
}

__global__ void __launch_bounds__(32) fill_much(float* to, int count) {
  float* shared = device::shared_memory<float>();
  for (int i = int(device::thread_index().x); i < count; i += 32) shared[i] = float(i);
  device::sync_threads();
  if (device::thread_index().x == 0) *to = shared[count - 1];
}

TEST(DeviceApi, SharedMemoryBeyond48KiBAndRefusedLaunches) {
  const Memory<float> to({0.f});
  launch(fill_much, 1, 32, 50000 * sizeof(float), nullptr, to.get(), 50000);
  EXPECT_EQ(to.values()[0], 49999);
  EXPECT_THROW(launch(fill_much, 1, 2048, 4, nullptr, to.get(), 1), Error);
  EXPECT_THROW(launch(fill_much, 1, 32, 300 << 10, nullptr, to.get(), 1), Error);
  launch(fill_much, 0, 32, 4, nullptr, to.get(), 1);
  EXPECT_EQ(to.values()[0], 49999) << "no blocks, nothing done";
}

__global__ void __launch_bounds__(32) exponentials(float* values) {
  const unsigned i = device::lane();
  values[i] = device::fast_exp2(values[i]);
}

TEST(DeviceApi, FastExponential) {
  std::vector<float> exponents = {0, 1, -1, 127, -126, -127, -1000, 1000, -INFINITY, INFINITY, NAN};
  for (int i = 0; exponents.size() < 32; ++i) exponents.push_back(-0.37f * float(i * i) + 1.9f);
  const Memory<float> values(exponents);
  launch(exponentials, 1, 32, 0, nullptr, values.get());
  const std::vector<float> got = values.values();
  for (size_t i = 0; i < 32; ++i) {
    const double exact = exponents[i] < -126 ? 0 : std::exp2(double(exponents[i]));
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else if (exponents[i] >= 128) {
      EXPECT_EQ(got[i], INFINITY);
    } else {
      EXPECT_NEAR(got[i], exact, exact * std::ldexp(1, -21)) << exponents[i];
    }
  }
}

TEST(DeviceApi, UrgentStreamsComeBeforeOthers) {
  const Stream ordinary(Device{DeviceKind::cuda}), urgent(Device{DeviceKind::cuda}, true);
  int least = 0, greatest = 0, of_ordinary = 0, of_urgent = 0;
  KEEL_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  KEEL_CUDA(cudaStreamGetPriority(static_cast<cudaStream_t>(ordinary.native()), &of_ordinary));
  KEEL_CUDA(cudaStreamGetPriority(static_cast<cudaStream_t>(urgent.native()), &of_urgent));
  EXPECT_EQ(of_ordinary, least);
  EXPECT_EQ(of_urgent, greatest);
}

}  // namespace
}  // namespace keel::ops::cuda
