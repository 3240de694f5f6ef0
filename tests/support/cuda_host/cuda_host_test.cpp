// Every check of the stand-in fires: each test plants one mistake in a small kernel.
#include <device/launch.h>
#include <device/matrix.h>
#include <device/memory.h>
#include <device/warp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/cuda_host/launch.h"
#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/streams.h"

namespace keel {
namespace {

using namespace device;
using ::testing::HasSubstr;

// Device memory of n elements for one test.
template <class T>
class Memory {
 public:
  explicit Memory(size_t n) : n_(n) { KEEL_CUDA(cudaMalloc(&data_, n * sizeof(T))); }
  ~Memory() { cudaFree(data_); }
  T* get() const { return static_cast<T*>(data_); }
  void set(const std::vector<T>& values) const {
    KEEL_CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> values() const {
    std::vector<T> result(n_);
    KEEL_CUDA(cudaMemcpy(result.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  void* data_ = nullptr;
  size_t n_;
};

// What waiting for the launched kernel says: its fault, or "no fault".
std::string outcome() {
  const cudaError_t error = cudaDeviceSynchronize();
  const std::string sentence = error == cudaSuccess ? "no fault" : cudaGetErrorString(error);
  cuda_host::recover();
  return sentence;
}

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    cuda_host::recover();
    return error.what();
  }
  return "accepted";
}

// The block's sum of its threads' numbers, with or without the barrier that the reads need.
__global__ void sum_of_threads(int* to, bool with_barrier) {
  int* values = shared_memory<int>();
  values[thread_index().x] = int(thread_index().x);
  if (with_barrier) sync_threads();
  int sum = 0;
  for (unsigned i = 0; i < block_size().x; ++i) sum += values[i];
  to[block_index().x * block_size().x + thread_index().x] = sum;
}

TEST(CudaHost, RunsBlocksThreadsAndBarriers) {
  Memory<int> to(5 * 96);
  launch(sum_of_threads, 5, 96, 96 * sizeof(int), nullptr, to.get(), true);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_EQ(to.values(), std::vector<int>(5 * 96, 95 * 96 / 2));
}

TEST(CudaHost, MissingBarrierIsSeen) {
  Memory<int> to(96);
  launch(sum_of_threads, 1, 96, 96 * sizeof(int), nullptr, to.get(), false);
  EXPECT_THAT(outcome(), HasSubstr("a race between its threads"));
}

// Two rounds through one place of shared memory: the second write must wait for the first round's readers.
__global__ void two_rounds(int* to, bool with_barrier) {
  int* value = shared_memory<int>();
  int sum = 0;
  for (int round = 1; round <= 2; ++round) {
    if (with_barrier) sync_threads();
    if (thread_index().x == 40) *value = round;
    sync_threads();
    sum += *value;
  }
  to[thread_index().x] = sum;
}

TEST(CudaHost, WritingBeforeAllHaveReadIsSeen) {
  Memory<int> to(96);
  launch(two_rounds, 1, 96, 16, nullptr, to.get(), true);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_EQ(to.values(), std::vector<int>(96, 3));
  launch(two_rounds, 1, 96, 16, nullptr, to.get(), false);
  EXPECT_THAT(outcome(), HasSubstr("a race between its threads"));
}

__global__ void last_writer_wins(int* to) {
  *to = int(block_index().x * block_size().x + thread_index().x);
}

TEST(CudaHost, RacesBetweenThreadsAndBetweenBlocksAreSeen) {
  Memory<int> to(1);
  launch(last_writer_wins, 1, 64, 0, nullptr, to.get());
  EXPECT_THAT(outcome(), HasSubstr("a race between its threads"));
  launch(last_writer_wins, 64, 1, 0, nullptr, to.get());
  EXPECT_THAT(outcome(), HasSubstr("a race between its threads"));
}

__global__ void copy_ints(int* to, const int* from, int count) {
  const unsigned i = block_index().x * block_size().x + thread_index().x;
  if (int(i) < count) to[i] = from[i];
}

TEST(CudaHost, ReadsOfMemoryThatNobodyWroteAreSeen) {
  Memory<int> from(64), to(64);
  launch(copy_ints, 1, 64, 0, nullptr, to.get(), from.get(), 64);
  EXPECT_THAT(outcome(), HasSubstr("nobody wrote"));
  from.set(std::vector<int>(64, 3));
  launch(copy_ints, 1, 64, 0, nullptr, to.get(), from.get(), 64);
  EXPECT_EQ(outcome(), "no fault");
  cuda_host::make_fresh(from.get(), 64 * sizeof(int));
  launch(copy_ints, 1, 64, 0, nullptr, to.get(), from.get(), 64);
  EXPECT_THAT(outcome(), HasSubstr("nobody wrote"));
}

__global__ void first_of_shared(int* to) {
  *to = shared_memory<int>()[0];
}

TEST(CudaHost, SharedMemoryBeginsUndefined) {
  Memory<int> to(1);
  launch(first_of_shared, 1, 1, 16, nullptr, to.get());
  EXPECT_THAT(outcome(), HasSubstr("nobody wrote"));
}

TEST(CudaHost, ReadsOfTheBytesAroundAnAllocationAreSeen) {
  Memory<int> from(9), to(12);
  from.set(std::vector<int>(9, 1));
  launch(copy_ints, 1, 32, 0, nullptr, to.get(), from.get(), 12);
  EXPECT_THAT(outcome(), HasSubstr("nobody wrote"));
  launch(copy_ints, 1, 32, 0, nullptr, to.get(), from.get() - 1, 9);
  EXPECT_THAT(outcome(), HasSubstr("nobody wrote"));
}

TEST(CudaHost, WritesToTheBytesAroundAnAllocationAreSeen) {
  Memory<int> from(12);
  from.set(std::vector<int>(12, 1));
  for (int begin : {0, -2}) {
    void* nine = nullptr;
    KEEL_CUDA(cudaMalloc(&nine, 9 * sizeof(int)));
    launch(copy_ints, 1, 32, 0, nullptr, static_cast<int*>(nine) + begin, from.get(), begin == 0 ? 12 : 9);
    EXPECT_EQ(cudaFree(nine), cudaSuccess);
    EXPECT_THAT(outcome(), HasSubstr(begin == 0 ? "wrote 0 bytes behind the end of an allocation of 36 bytes"
                                                : "wrote 8 bytes before an allocation of 36 bytes"));
  }
}

using CudaHostDeath = ::testing::Test;

TEST(CudaHostDeath, AccessBehindTheEnd) {
  Memory<int> from(64), to(64);
  from.set(std::vector<int>(64, 1));
  EXPECT_DEATH((launch(copy_ints, 1, 96, 0, nullptr, to.get(), from.get(), 65), outcome()),
               "thread \\(64, 0, 0\\) of block \\(0, 0, 0\\).*0 bytes behind the end of an allocation of 256 bytes");
}

__global__ void write_shared(int index) {
  shared_memory<int>()[index] = 1;
}

TEST(CudaHostDeath, AccessBehindSharedMemory) {
  launch(write_shared, 1, 1, 64, nullptr, 15);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_DEATH((launch(write_shared, 1, 1, 64, nullptr, 16), outcome()), "accessed");
}

TEST(CudaHostDeath, UseAfterFree) {
  Memory<int> to(4);
  void* freed = nullptr;
  KEEL_CUDA(cudaMalloc(&freed, 16));
  KEEL_CUDA(cudaFree(freed));
  EXPECT_DEATH((launch(copy_ints, 1, 4, 0, nullptr, to.get(), static_cast<const int*>(freed), 4), outcome()),
               "device memory of 16 bytes that was freed");
  EXPECT_EQ(cudaMemcpy(freed, freed, 16, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(freed), cudaErrorInvalidValue);
  cuda_host::recover();
}

TEST(CudaHostDeath, TheHostCannotReachDeviceMemory) {
  Memory<int> memory(4);
  EXPECT_DEATH(memory.get()[0] = 1, "the host accessed .* device memory, which the host cannot access");
}

__global__ void diverging_barriers(bool same_barrier) {
  if (thread_index().x % 2 == 0)
    sync_threads();
  else if (!same_barrier)
    sync_threads();
}

TEST(CudaHost, BarrierDivergenceIsSeen) {
  launch(diverging_barriers, 1, 64, 0, nullptr, true);
  EXPECT_THAT(outcome(),
              HasSubstr("barrier divergence: 32 threads wait for a barrier, 0 for lanes of their warp, 32 have ended"));
  launch(diverging_barriers, 1, 64, 0, nullptr, false);
  EXPECT_THAT(outcome(), HasSubstr("barrier divergence: thread 0 waits at"));
}

__global__ void exchange(float* to, unsigned mask, int kind) {
  const unsigned own = lane();
  const float value = float(own);
  float result = 0;
  if (kind == 0) result = value + 100 * shuffle_xor(value, 5) + 10000 * shuffle(value, 40);
  if (kind == 1) result = float(ballot(own % 3 == 0) % 65536);
  if (kind == 2 && own < 16) result = shuffle_xor(value, 8, mask);
  if (kind == 3) result = own < 16 ? shuffle_xor(value, 8) : shuffle(value, own);
  if (kind == 4 && own != 7) result = shuffle_xor(value, 8);
  to[thread_index().x] = result;
}

std::string exchanged(unsigned mask, int kind) {
  Memory<float> to(64);
  launch(exchange, 1, 64, 0, nullptr, to.get(), mask, kind);
  return outcome();
}

TEST(CudaHost, LanesExchange) {
  Memory<float> to(64);
  launch(exchange, 1, 64, 0, nullptr, to.get(), kAllLanes, 0);
  EXPECT_EQ(outcome(), "no fault");
  for (int i = 0; i < 64; ++i) {
    const int own = i % 32;
    EXPECT_EQ(to.values()[size_t(i)], float(own + 100 * (own ^ 5) + 10000 * 8)) << i;
  }
  launch(exchange, 1, 64, 0, nullptr, to.get(), kAllLanes, 1);
  EXPECT_EQ(to.values()[3], float(0x9249));
}

TEST(CudaHost, WarpDivergenceIsSeen) {
  EXPECT_EQ(exchanged(0xffff, 2), "no fault");
  EXPECT_THAT(exchanged(0xfffe, 2), HasSubstr("is not in its mask 0xfffe"));
  EXPECT_THAT(exchanged(kAllLanes, 2), HasSubstr("warp divergence"));
  EXPECT_THAT(exchanged(0xffffff, 2), HasSubstr("warp divergence"));
  EXPECT_THAT(exchanged(kAllLanes, 3), HasSubstr("warp divergence"));
  EXPECT_THAT(exchanged(kAllLanes, 4), HasSubstr("warp divergence"));
}

struct alignas(16) Four {
  float values[4];
};
__global__ void load_four(float* to, const float* from, int kind) {
  if (kind == 0) to[0] = load_vector<Four>(from).values[1];
  if (kind == 1) store_vector(to, Four{});
  if (kind == 2) copy_async(shared_memory<float>(), from);
  if (kind == 3) copy_async(shared_memory<float>() + 1, from - 1);
  if (kind == 4) to[0] = reinterpret_cast<const Four*>(from)->values[1];
  if (kind == 5) copy_word_async(shared_memory<char>() + 2, from);
}

TEST(CudaHost, MisalignedVectorsAreSeen) {
  Memory<float> from(8), to(8);
  from.set(std::vector<float>(8, 1.f));
  to.set(std::vector<float>(8, 1.f));
  auto run = [&](int to_offset, int from_offset, int kind) {
    launch(load_four, 1, 1, 32, nullptr, to.get() + to_offset, from.get() + from_offset, kind);
    return outcome();
  };
  EXPECT_EQ(run(0, 0, 0), "no fault");
  EXPECT_THAT(run(0, 1, 0), HasSubstr("misaligned: load_vector"));
  EXPECT_EQ(run(4, 0, 1), "no fault");
  EXPECT_THAT(run(2, 0, 1), HasSubstr("misaligned: store_vector"));
  EXPECT_THAT(run(0, 3, 2), HasSubstr("misaligned: copy_async from"));
  EXPECT_THAT(run(0, 1, 3), HasSubstr("misaligned: copy_async to"));
  EXPECT_THAT(run(0, 1, 5), HasSubstr("misaligned: copy_async to"));
}

TEST(CudaHostDeath, MisalignedAccessWithoutTheDeviceHeaders) {
  Memory<float> from(8), to(8);
  from.set(std::vector<float>(8, 1.f));
  launch(load_four, 1, 1, 32, nullptr, to.get(), from.get(), 4);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_DEATH((launch(load_four, 1, 1, 32, nullptr, to.get(), from.get() + 1, 4), outcome()), "misaligned address");
}

__global__ void copy_through_shared(float* to, const float* from, bool wait) {
  float* shared = shared_memory<float>();
  shared[4 * thread_index().x] = shared[4 * thread_index().x + 1] = -1;
  copy_async(shared + 4 * thread_index().x, from + 4 * thread_index().x, 4);
  commit_copies();
  if (wait) wait_copies<0>();
  to[2 * thread_index().x] = shared[4 * thread_index().x];
  to[2 * thread_index().x + 1] = shared[4 * thread_index().x + 1];
}

TEST(CudaHost, AsynchronousCopiesArriveWithTheWaitOnly) {
  Memory<float> from(128), to(64);
  from.set(std::vector<float>(128, 5.f));
  launch(copy_through_shared, 1, 32, 512, nullptr, to.get(), from.get(), true);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_EQ(to.values()[62], 5);
  EXPECT_EQ(to.values()[63], 0) << "what is past the valid bytes is zero";
  launch(copy_through_shared, 1, 32, 512, nullptr, to.get(), from.get(), false);
  EXPECT_EQ(outcome(), "no fault");
  EXPECT_EQ(to.values()[62], -1);
}

TEST(CudaHost, LaunchesBeyondTheDeviceAreRefused) {
  auto refused = [](dim3 grid, dim3 block, size_t shared) {
    return message_of([&] { launch(write_shared, grid, block, shared, nullptr, 0); });
  };
  EXPECT_EQ(refused(1, 1024, 64), "accepted");
  EXPECT_EQ(refused(1, 1, 232448), "accepted");
  EXPECT_THAT(refused(1, 1025, 64), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(refused(1, {32, 33, 1}, 64), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(refused({1, 65536, 1}, 1, 64), HasSubstr("cudaErrorInvalidConfiguration"));
  EXPECT_THAT(refused(1, 1, 232449), HasSubstr("cudaErrorInvalidValue"));
  outcome();
}

TEST(CudaHost, StreamsRunInOrderAndNotBeforeSomebodyWaits) {
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t event = nullptr;
  void* host = nullptr;
  KEEL_CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  KEEL_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  KEEL_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  KEEL_CUDA(cudaMallocHost(&host, sizeof(int)));
  int& seen = *static_cast<int*>(host);
  seen = 0;
  Memory<int> memory(1);
  memory.set({7});
  KEEL_CUDA(cudaMemcpyAsync(host, memory.get(), sizeof(int), cudaMemcpyDeviceToHost, first));
  KEEL_CUDA(cudaEventRecord(event, first));
  KEEL_CUDA(cudaStreamWaitEvent(second, event, 0));
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(cudaStreamQuery(first), cudaErrorNotReady);
  KEEL_CUDA(cudaStreamSynchronize(second));
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  KEEL_CUDA(cudaEventDestroy(event));
  KEEL_CUDA(cudaStreamDestroy(first));
  KEEL_CUDA(cudaStreamDestroy(second));
  EXPECT_EQ(cudaStreamSynchronize(second), cudaErrorInvalidResourceHandle);
  KEEL_CUDA(cudaFreeHost(host));
  cuda_host::recover();
}

TEST(CudaHost, AfterAFaultEveryCallFails) {
  launch(diverging_barriers, 1, 64, 0, nullptr, true);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorLaunchFailure);
  EXPECT_THAT(message_of([] { KEEL_CUDA(cudaStreamSynchronize(nullptr)); }), HasSubstr("barrier divergence"));
}

TEST(CudaHost, CopiesAreChecked) {
  Memory<int> memory(4);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpy(memory.get(), host, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue) << "too long";
  EXPECT_EQ(cudaMemcpy(host, memory.get() + 1, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory.get(), host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue) << "wrong direction";
  EXPECT_EQ(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory.get(), host, 16, cudaMemcpyDefault), cudaSuccess);
  void* most = nullptr;
  EXPECT_EQ(cudaMalloc(&most, size_t(1) << 40), cudaErrorMemoryAllocation);
  cuda_host::recover();
}

}  // namespace
}  // namespace keel
