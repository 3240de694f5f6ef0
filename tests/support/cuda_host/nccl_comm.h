// The communicators of the NCCL stand-in (nccl.cpp) and how their calls travel (nccl_exchange.cpp): as messages over
// MPI_COMM_WORLD, each with a header that says what its sender called.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_host/streams.h"

namespace keel::cuda_host {

enum class Verb : int32_t { all_reduce, reduce_scatter, all_gather, broadcast, send, recv };

// What ranks must agree about.
struct Header {
  Verb verb;
  int32_t type, op;
  int32_t peer;     // root; of a message, its other end
  uint64_t count;   // as the caller gave it, in elements
  uint64_t number;  // of this collective on its communicator
};

struct Call {
  Header header;
  const void* in;
  void* out;
  ncclComm* comm;
  cudaStream_t stream;

  bool is_message() const { return header.verb == Verb::send || header.verb == Verb::recv; }
  // How many elements this rank gives and gets.
  uint64_t in_elements() const;
  uint64_t out_elements() const;
};

// 0 for types that are not in use here.
uint64_t bytes_of(int type);
// "all_reduce number 3 of 8 fp32 elements, sum"
std::string text(const Header& header);

// One turn of the ranks' meeting; true once the communicator is ready or has failed.
class Meeting;
bool meet(ncclComm& comm);
// What the stream runs.
Turn collective(const Call& call);
Turn messages(const std::vector<Call>& calls);

}  // namespace keel::cuda_host

// NCCL declares its handles as pointers to this. Never freed, so that a use after the end is seen.
struct ncclComm {
  enum class State { meeting, ready, finalized, destroyed, aborted };

  int rank = 0, size = 1, device = 0;
  bool blocking = true;
  int root = 0;  // in MPI_COMM_WORLD, of the process that made the id
  int tag = 0;   // and three more
  std::atomic<State> state = State::meeting;
  ncclResult_t async = ncclInProgress;
  std::string trouble;     // why they could not meet
  std::vector<int> world;  // ranks in MPI_COMM_WORLD
  uint64_t collectives = 0;
  std::atomic<int> in_flight = 0;  // pieces of streams
  std::shared_ptr<keel::cuda_host::Meeting> meeting;

  // A call may come to its stream only after somebody asked for it, as in a communicator that never blocks.
  struct Waiting {
    cudaStream_t stream;
    keel::cuda_host::Turn turn;
  };
  std::deque<Waiting> waiting;
  int questions_left = 0;
  bool late = false;  // every other call
};
