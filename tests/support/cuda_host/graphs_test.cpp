// Captured work runs when its graph is launched, again and again, and every check of a capture fires: each test plants
// one mistake that the runtime refuses.
#include <cuda_runtime_api.h>
#include <device/launch.h>
#include <device/thread.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/cuda_host/streams.h"

namespace keel {
namespace {

using device::launch;
using ::testing::HasSubstr;

__global__ void add_to(int* to, const int* from, int more) {
  to[0] += from[0] + more;
}

class CudaHostGraphs : public ::testing::Test {
 protected:
  CudaHostGraphs() {
    for (cudaStream_t* stream : {&stream_, &side_}) KEEL_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&fork_, &join_}) KEEL_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    KEEL_CUDA(cudaMalloc(&memory_, 4 * sizeof(int)));
    KEEL_CUDA(cudaMallocHost(&pinned_, sizeof(int)));
    set({1, 10, 100, 1000});
  }
  ~CudaHostGraphs() override {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_, &graph);
    cuda_host::recover();
    cudaFree(memory_);
    cudaFreeHost(pinned_);
    for (cudaEvent_t event : {fork_, join_}) cudaEventDestroy(event);
    for (cudaStream_t stream : {stream_, side_}) cudaStreamDestroy(stream);
    cuda_host::recover();
  }

  int* at(int i) const { return static_cast<int*>(memory_) + i; }
  void set(const std::vector<int>& values) const {
    KEEL_CUDA(cudaMemcpy(memory_, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));
  }
  std::vector<int> values() const {
    std::vector<int> values(4);
    KEEL_CUDA(cudaMemcpy(values.data(), memory_, values.size() * sizeof(int), cudaMemcpyDeviceToHost));
    return values;
  }
  void begin() const { KEEL_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
  cudaGraphExec_t end() const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    KEEL_CUDA(cudaStreamEndCapture(stream_, &graph));
    KEEL_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    KEEL_CUDA(cudaGraphDestroy(graph));
    return executable;
  }
  void replay(cudaGraphExec_t executable) const {
    KEEL_CUDA(cudaGraphLaunch(executable, stream_));
    KEEL_CUDA(cudaStreamSynchronize(stream_));
  }
  // What the end of the capture says.
  std::string ending() const {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    return error == cudaSuccess ? "recorded" : std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
  }
  // The call is refused within a capture, by name, and the capture does not survive it.
  template <class Call>
  void expect_refused(cudaError_t expected, const std::string& sentence, const Call& call) {
    begin();
    launch(add_to, 1, 1, 0, stream_, at(0), at(1), 0);
    EXPECT_EQ(call(), expected) << sentence;
    EXPECT_EQ(cudaGetErrorString(expected), sentence);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    KEEL_CUDA(cudaStreamIsCapturing(stream_, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated) << sentence;
    EXPECT_THROW(launch(add_to, 1, 1, 0, stream_, at(0), at(1), 0), Error) << sentence;
    EXPECT_EQ(ending(), "cudaErrorStreamCaptureInvalidated: " + sentence);
    KEEL_CUDA(cudaStreamIsCapturing(stream_, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone) << sentence;
    cuda_host::recover();
  }

  cudaStream_t stream_ = nullptr, side_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  void *memory_ = nullptr, *pinned_ = nullptr;
};

TEST_F(CudaHostGraphs, RunWhenTheyAreLaunchedWithTheArgumentsOfTheCapture) {
  int more = 5;
  begin();
  launch(add_to, 1, 1, 0, stream_, at(0), at(1), more);
  KEEL_CUDA(cudaMemcpyAsync(pinned_, at(0), sizeof(int), cudaMemcpyDeviceToHost, stream_));
  KEEL_CUDA(cudaMemsetAsync(at(3), 0, sizeof(int), stream_));
  const cudaGraphExec_t executable = end();
  more = 500;
  EXPECT_EQ(values(), (std::vector<int>{1, 10, 100, 1000})) << "nothing ran";
  replay(executable);
  EXPECT_EQ(values(), (std::vector<int>{16, 10, 100, 0}));
  EXPECT_EQ(*static_cast<int*>(pinned_), 16);
  set({1, 20, 100, 1000});
  for (int i = 0; i < 3; ++i) KEEL_CUDA(cudaGraphLaunch(executable, stream_));
  KEEL_CUDA(cudaGraphExecDestroy(executable));
  KEEL_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(values(), (std::vector<int>{76, 20, 100, 0})) << "memory is read when the graph runs";
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaErrorInvalidValue);
}

// Forks to the side stream and back; `waits` says whether the origin waits before it reads what the side stream made.
std::vector<int> forked(cudaStream_t stream, cudaStream_t side, cudaEvent_t fork, cudaEvent_t join, int* at,
                        bool waits) {
  launch(add_to, 1, 1, 0, stream, at, at + 3, 0);
  KEEL_CUDA(cudaEventRecord(fork, stream));
  KEEL_CUDA(cudaStreamWaitEvent(side, fork, 0));
  launch(add_to, 1, 1, 0, side, at + 1, at, 0);
  KEEL_CUDA(cudaEventRecord(join, side));
  if (waits) KEEL_CUDA(cudaStreamWaitEvent(stream, join, 0));
  launch(add_to, 1, 1, 0, stream, at + 2, at + 1, 0);
  KEEL_CUDA(cudaStreamWaitEvent(stream, join, 0));
  return {1001, 1011, waits ? 1111 : 110, 1000};
}

TEST_F(CudaHostGraphs, ForksRunAfterWhatTheyWaitedForAndNoSooner) {
  for (bool waits : {true, false}) {
    set({1, 10, 100, 1000});
    begin();
    const std::vector<int> expected = forked(stream_, side_, fork_, join_, at(0), waits);
    replay(end());
    EXPECT_EQ(values(), expected) << (waits ? "" : "the side stream's work comes as late as it may");
  }
  launch(add_to, 1, 1, 0, side_, at(0), at(1), 0);  // the side stream has left the capture
  KEEL_CUDA(cudaStreamSynchronize(side_));
  EXPECT_EQ(values()[0], 1001 + 1011);
}

TEST_F(CudaHostGraphs, MemoryThatWasFreedIsNotReached) {
  void* freed = nullptr;
  KEEL_CUDA(cudaMalloc(&freed, 16));
  begin();
  launch(add_to, 1, 1, 0, stream_, at(0), static_cast<const int*>(freed), 0);
  const cudaGraphExec_t executable = end();
  KEEL_CUDA(cudaFree(freed));
  EXPECT_DEATH(replay(executable), "device memory of 16 bytes that was freed");
}

TEST_F(CudaHostGraphs, NothingIsAllocatedOrFreedWithin) {
  void *device = nullptr, *pinned = nullptr;
  const auto unsupported = cudaErrorStreamCaptureUnsupported;
  expect_refused(unsupported, "cudaMalloc in a thread that captures a stream", [&] { return cudaMalloc(&device, 16); });
  expect_refused(unsupported, "cudaFree in a thread that captures a stream", [&] { return cudaFree(memory_); });
  expect_refused(unsupported, "cudaMallocHost in a thread that captures a stream",
                 [&] { return cudaMallocHost(&pinned, 16); });
  expect_refused(unsupported, "cudaFreeHost in a thread that captures a stream", [&] { return cudaFreeHost(pinned_); });
}

TEST_F(CudaHostGraphs, NothingIsWaitedForWithin) {
  const auto unsupported = cudaErrorStreamCaptureUnsupported;
  expect_refused(unsupported, "cudaStreamSynchronize of a stream that is captured",
                 [&] { return cudaStreamSynchronize(stream_); });
  expect_refused(unsupported, "cudaStreamQuery of a stream that is captured", [&] { return cudaStreamQuery(stream_); });
  expect_refused(unsupported, "cudaStreamDestroy of a stream that is captured",
                 [&] { return cudaStreamDestroy(stream_); });
  expect_refused(unsupported, "cudaDeviceSynchronize in a thread that captures a stream",
                 [] { return cudaDeviceSynchronize(); });
  expect_refused(cudaErrorCapturedEvent, "cudaEventSynchronize of an event that was recorded in a capture", [&] {
    KEEL_CUDA(cudaEventRecord(fork_, stream_));
    return cudaEventSynchronize(fork_);
  });
  expect_refused(cudaErrorCapturedEvent, "cudaEventQuery of an event that was recorded in a capture", [&] {
    KEEL_CUDA(cudaEventRecord(fork_, stream_));
    return cudaEventQuery(fork_);
  });
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent) << "also afterwards";
}

TEST_F(CudaHostGraphs, NoMemoryOfTheHostIsCopiedWithin) {
  int host = 0;
  expect_refused(cudaErrorStreamCaptureUnsupported, "cudaMemcpy in a thread that captures a stream",
                 [&] { return cudaMemcpy(at(0), &host, sizeof host, cudaMemcpyHostToDevice); });
  expect_refused(cudaErrorStreamCaptureUnsupported, "cudaMemset in a thread that captures a stream",
                 [&] { return cudaMemset(at(0), 0, sizeof host); });
  expect_refused(cudaErrorStreamCaptureUnsupported, "a copy of memory that is not pinned in a capture",
                 [&] { return cudaMemcpyAsync(at(0), &host, sizeof host, cudaMemcpyHostToDevice, stream_); });
}

TEST_F(CudaHostGraphs, TheDefaultStreamTakesNoPart) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal), cudaErrorStreamCaptureUnsupported);
  const std::string sentence = "the default stream is used in a thread that captures another one";
  expect_refused(cudaErrorStreamCaptureImplicit, sentence,
                 [&] { return cudaMemsetAsync(at(0), 0, sizeof(int), nullptr); });
  expect_refused(cudaErrorStreamCaptureImplicit, sentence, [] { return cudaStreamSynchronize(nullptr); });
  expect_refused(cudaErrorStreamCaptureImplicit, sentence, [&] {
    KEEL_CUDA(cudaEventRecord(fork_, stream_));
    return cudaStreamWaitEvent(nullptr, fork_, 0);
  });
}

TEST_F(CudaHostGraphs, StreamsJoinOverEventsOfTheCaptureAndAreWaitedFor) {
  begin();
  KEEL_CUDA(cudaEventRecord(fork_, stream_));
  KEEL_CUDA(cudaStreamWaitEvent(side_, fork_, 0));
  launch(add_to, 1, 1, 0, side_, at(0), at(1), 0);
  EXPECT_THAT(ending(), HasSubstr("cudaErrorStreamCaptureUnjoined"));
  cuda_host::recover();
  KEEL_CUDA(cudaEventRecord(join_, side_));
  expect_refused(cudaErrorStreamCaptureIsolation,
                 "a captured stream waits for an event that was not recorded in the capture",
                 [&] { return cudaStreamWaitEvent(stream_, join_, 0); });
}

TEST_F(CudaHostGraphs, BeginAndEndOnOneStreamAndThread) {
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaErrorInvalidValue) << "not simulated";
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  KEEL_CUDA(cudaEventRecord(fork_, stream_));
  KEEL_CUDA(cudaStreamWaitEvent(side_, fork_, 0));
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_THAT(ending(), HasSubstr("cudaErrorStreamCaptureInvalidated"));
  begin();
  std::thread([&] { EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureWrongThread); }).join();
  EXPECT_THAT(ending(), HasSubstr("cudaErrorStreamCaptureInvalidated"));
  cuda_host::recover();
}

TEST_F(CudaHostGraphs, OtherThreadsGoOn) {
  begin();
  std::thread([&] {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory, 0, 16), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }).join();
  launch(add_to, 1, 1, 0, stream_, at(0), at(1), 0);
  replay(end());
  EXPECT_EQ(values()[0], 11);
}

TEST_F(CudaHostGraphs, NoGraphWithinAGraph) {
  begin();
  launch(add_to, 1, 1, 0, stream_, at(0), at(1), 0);
  const cudaGraphExec_t executable = end();
  expect_refused(cudaErrorStreamCaptureUnsupported, "another graph in a capture",
                 [&] { return cudaGraphLaunch(executable, stream_); });
}

}  // namespace
}  // namespace keel
