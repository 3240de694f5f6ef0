// Every check of the NCCL stand-in fires: each test plants one mistake, on one rank or between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <functional>

#include "tests/support/cuda_host/nccl_faults.h"
#include "tests/support/cuda_host/streams.h"

namespace keel::cuda_host {
namespace {

using ::testing::HasSubstr;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

class Nccl : public ::testing::Test {
 protected:
  static constexpr size_t kCount = 12;

  void SetUp() override {
    cudaSetDevice(rank);
    make(true);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (float** memory : {&x, &y}) {
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(memory), kCount * size_t(size) * sizeof(float)), cudaSuccess);
      ASSERT_EQ(cudaMemset(*memory, 0, kCount * size_t(size) * sizeof(float)), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override {
    recover();
    ncclCommAbort(comm);
    cudaStreamDestroy(stream);
    cudaFree(x);
    cudaFree(y);
    recover();
  }

  void make(bool blocking) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    ASSERT_EQ(result, blocking ? ncclSuccess : ncclInProgress) << ncclGetLastError(nullptr);
  }

  ncclResult_t sum(const void* in, void* out, size_t count = kCount, ncclDataType_t type = ncclFloat32) {
    return ncclAllReduce(in, out, count, type, ncclSum, comm, stream);
  }
  // What waiting for the stream says.
  std::string outcome() {
    const cudaError_t error = cudaStreamSynchronize(stream);
    return error == cudaSuccess ? "no fault" : cudaGetErrorString(error);
  }
  static void expect_refused(ncclResult_t result, ncclResult_t expected, const char* sentence) {
    EXPECT_EQ(result, expected);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(sentence));
  }

  const int rank = world_rank(), size = world_size();
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float *x = nullptr, *y = nullptr;
};

TEST_F(Nccl, RunsWhenTheStreamIsWaitedFor) {
  EXPECT_EQ(sum(x, y), ncclSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(outcome(), "no fault");
}

TEST_F(Nccl, MemoryIsChecked) {
  std::vector<float> host(kCount);
  expect_refused(sum(host.data(), y), ncclInvalidArgument, "no device memory is there");
  expect_refused(sum(x, y, kCount * size_t(size) + 1), ncclInvalidArgument, "device memory");
  expect_refused(sum(reinterpret_cast<char*>(x) + 2, y, 2), ncclInvalidArgument, "no multiple of 4");
  expect_refused(ncclAllGather(x, y, kCount + 1, ncclFloat32, comm, stream), ncclInvalidArgument, "device memory");
  cudaSetDevice(rank + 1);
  void* elsewhere = nullptr;
  ASSERT_EQ(cudaMalloc(&elsewhere, 64), cudaSuccess);
  expect_refused(sum(elsewhere, y, 2), ncclInvalidArgument, "memory of device");
  cudaFree(elsewhere);
  expect_refused(sum(elsewhere, y, 2), ncclInvalidArgument, "that was freed");
}

TEST_F(Nccl, ArgumentsAreChecked) {
  expect_refused(sum(x, y, 2, ncclFloat16), ncclInvalidArgument, "the type 6");
  expect_refused(ncclAllReduce(x, y, 2, ncclFloat32, ncclProd, comm, stream), ncclInvalidArgument, "the operation 1");
  expect_refused(ncclBroadcast(x, y, 2, ncclFloat32, size, comm, stream), ncclInvalidArgument, "rank");
  expect_refused(sum(x, x + 1, 2), ncclInvalidArgument, "overlap other than in place");
  expect_refused(ncclReduceScatter(x, x + 1, kCount - 1, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument,
                 "overlap other than in place");
  cudaStream_t elsewhere = nullptr;
  cudaSetDevice(rank + 1);
  ASSERT_EQ(cudaStreamCreateWithFlags(&elsewhere, cudaStreamNonBlocking), cudaSuccess);
  expect_refused(ncclAllReduce(x, y, 2, ncclFloat32, ncclSum, comm, elsewhere), ncclInvalidArgument,
                 "a stream of device");
  cudaStreamDestroy(elsewhere);
}

TEST_F(Nccl, GroupsMustBeBalanced) {
  expect_refused(ncclGroupEnd(), ncclInvalidUsage, "not in a group call");
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  ncclResult_t state;
  expect_refused(ncclCommGetAsyncError(comm, &state), ncclInvalidUsage, "1 groups were started and not ended");
  expect_refused(ncclCommFinalize(comm), ncclInvalidUsage, "1 groups were started and not ended");
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
}

TEST_F(Nccl, AMessageToTheOwnRankNeedsBothEnds) {
  expect_refused(ncclSend(x, 2, ncclFloat32, rank, comm, stream), ncclInvalidUsage, "both ends in one group");
}

TEST_F(Nccl, OnlyALivingReadyCommunicatorIsCalled) {
  expect_refused(ncclCommDestroy(comm), ncclInvalidUsage, "not finalized");
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  expect_refused(sum(x, y), ncclInvalidArgument, "was aborted");
  make(false);
  expect_refused(sum(x, y), ncclInvalidUsage, "not ready");
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(sum(x, y), ncclInProgress);
  expect_refused(sum(x, y), ncclInvalidUsage, "busy");
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << "nothing came to the stream";
  state = ncclInProgress;
  while (state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(outcome(), "no fault");
  fail_nccl(ncclRemoteError);
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclRemoteError);
  EXPECT_EQ(sum(x, y), ncclRemoteError);
}

// Calls that differ between ranks: both are named, on every rank that compares them.
TEST_F(Nccl, DifferentCountsAreNamed) {
  if (size == 1) return;
  EXPECT_EQ(sum(x, y, rank == 1 ? 7 : 8), ncclSuccess);
  const std::string sentence = outcome();
  EXPECT_THAT(sentence, HasSubstr("called all_reduce number 1 of 8 fp32 elements, sum"));
  EXPECT_THAT(sentence, HasSubstr("rank 1 called all_reduce number 1 of 7 fp32 elements, sum"));
}

TEST_F(Nccl, DifferentOrderIsNamed) {
  if (size == 1) return;
  if (rank == 0) {
    EXPECT_EQ(sum(x, y), ncclSuccess);
  }
  EXPECT_EQ(ncclBroadcast(x, x, 3, ncclFloat32, 0, comm, stream), ncclSuccess);
  if (rank != 0) {
    EXPECT_EQ(sum(x, y), ncclSuccess);
  }
  const std::string sentence = outcome();
  EXPECT_THAT(sentence, HasSubstr("rank 0 called all_reduce number 1 of 12 fp32 elements, sum"));
  EXPECT_THAT(sentence, HasSubstr("called broadcast number 1 of 3 fp32 elements, root 0"));
}

TEST_F(Nccl, DifferentTypesOperationsAndRootsAreNamed) {
  if (size == 1) return;
  const std::function<void()> calls[] = {
      [&] { sum(x, y, 2, rank == 0 ? ncclFloat32 : ncclInt32); },
      [&] { ncclAllReduce(x, y, 2, ncclFloat32, rank == 0 ? ncclSum : ncclMax, comm, stream); },
      [&] { ncclBroadcast(x, x, 2, ncclFloat32, rank == 0 ? 0 : 1, comm, stream); }};
  for (const auto& call : calls) {
    call();
    EXPECT_THAT(outcome(), HasSubstr("NCCL: rank "));
    recover();
    ncclCommAbort(comm);
    make(true);
  }
}

TEST_F(Nccl, MessagesOfDifferentSizesAreNamed) {
  if (size == 1) return;
  if (rank == 0) {
    EXPECT_EQ(ncclSend(x, 5, ncclFloat32, 1, comm, stream), ncclSuccess);
  }
  if (rank == 1) {
    EXPECT_EQ(ncclRecv(x, 6, ncclFloat32, 0, comm, stream), ncclSuccess);
  }
  EXPECT_EQ(outcome(), rank != 1
                           ? "no fault"
                           : "NCCL: rank 1 called recv of 6 fp32 elements, rank 0 called send of 5 fp32 elements");
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreNamed) {
  if (size == 1) return;
  ncclCommAbort(comm);
  cudaSetDevice(0);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, size, id, rank, &config), ncclInvalidUsage);
}

// The devices of other ranks need no host: one that waits for something else does not hold them up.
TEST_F(Nccl, DevicesGoOnWithoutTheirHosts) {
  EXPECT_EQ(sum(x, y), ncclSuccess);
  if (rank == 0) {
    EXPECT_EQ(outcome(), "no fault");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_EQ(outcome(), "no fault");
}

}  // namespace
}  // namespace keel::cuda_host
