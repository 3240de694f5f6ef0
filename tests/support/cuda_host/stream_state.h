// Streams and events as streams.cpp and graphs.cpp know them.
#pragma once

#include <driver_types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_host/streams.h"

namespace keel::cuda_host {

struct Piece {
  Turn turn;
  bool exchanges;  // with other processes, which cannot make this one wait for its stream
  std::chrono::steady_clock::time_point since;
};

// Indices of a capture's nodes: what comes next comes after these.
using Places = std::vector<size_t>;

// Work that streams are given and do not run, with what it comes after.
struct Capture {
  struct Node {
    Turn turn;
    Places after;
  };

  CUstream_st* origin = nullptr;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::string refused;  // the first call that it did not survive
  bool ended = false;
};

// The mutex that everything below is read and written under: held while a piece of work runs, not while one waits for
// another process.
std::mutex& stream_mutex();
using Lock = std::unique_lock<std::mutex>;

// Null is the default stream of the current device; null is returned for an unknown one.
CUstream_st* known(cudaStream_t stream);
std::vector<CUstream_st*> all_streams();

// The error of a call that a capture does not allow. The sentence is what cudaGetErrorString says; the capture, where
// there is one, is spoiled by it.
cudaError_t refuse(Capture* capture, cudaError_t error, const std::string& sentence);
// For a call that a capturing thread must not make; cudaSuccess where the thread captures nothing.
cudaError_t refuse_while_capturing(const char* call);
// For what may not be done on a captured stream.
cudaError_t refuse_where_captured(cudaStream_t stream, const char* what);
// Why a capture did not allow the calling thread's last refused call.
std::string refusal();
// cudaSuccess for a stream that takes work now. Refuses the default stream of a thread that captures.
cudaError_t check_takes_work(const CUstream_st& stream);
// In the place of running it.
cudaError_t record(CUstream_st& stream, Piece piece);
// What cudaStreamWaitEvent does where the stream or the event belongs to a capture.
cudaError_t wait_in_capture(CUstream_st& stream, const CUevent_st& event);

}  // namespace keel::cuda_host

// CUDA declares its handles as pointers to these.
struct CUevent_st {
  CUstream_st* stream = nullptr;  // of the last record
  uint64_t position = 0;          // how much of that stream's work comes before it
  bool recorded = false;
  std::shared_ptr<keel::cuda_host::Capture> capture;  // that the last record belongs to
  keel::cuda_host::Places after;
};

struct CUstream_st {
  int device = 0, priority = 0;
  bool is_default = false;
  std::deque<keel::cuda_host::Piece> work;
  uint64_t started = 0, done = 0;
  std::shared_ptr<keel::cuda_host::Capture> capture;
  keel::cuda_host::Places after;
};
