// Ranks over MPI, on CPU tensors. MPI only moves bytes here; sums are Keel's own (reduce.h), so that they do not depend
// on which algorithm an MPI library picks.
#pragma once

#include <mpi.h>

#include <functional>
#include <source_location>

#include "framework/comm/communicator.h"

namespace keel::comm {

// KEEL_MPI(MPI_Barrier(comm)): throws an internal error with MPI's own words where the call fails. Communicators must
// have MPI_ERRORS_RETURN set.
void check_mpi(int code, const char* call, std::source_location where = std::source_location::current());
#define KEEL_MPI(call) ::keel::comm::check_mpi((call), #call)

struct MpiOptions {
  // Messages are cut below this; MPI counts are int.
  int64_t message_bytes = int64_t(1) << 30;
  // Sums travel in chunks of this, two at a time: small enough to stay in cache until added, large enough to fill the
  // wire. Of 32 KiB to 4 MiB, 64 KiB is fastest through shared memory.
  int64_t chunk_bytes = int64_t(64) << 10;
  // What one started sum may hold of other ranks' data; allocated when an operation is first used, then kept.
  int64_t scratch_bytes = int64_t(8) << 20;
  // Up to this many bytes (all ranks' parts together) everyone gets everything and sums it: fewer rounds.
  int64_t small_bytes = int64_t(64) << 10;
  double time_limit_seconds = 1800;
  // Slept between looks at what is waited for: by a thread beside one that computes. 0: the core is kept.
  int64_t pause_microseconds = 0;
  // Called when a wait has taken too long, before its error is thrown.
  std::function<void()> on_timeout = {};
};

// A communicator over the ranks of `parent`, which is duplicated. Collective.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options = {},
                                                    std::string_view name = "all");

}  // namespace keel::comm
