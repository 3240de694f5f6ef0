// Writes one checkpoint: all ranks together, to a temporary name, complete under its final one or not there at all.
#pragma once

#include <mpi.h>

#include "checkpoints/io_limit.h"
#include "checkpoints/local_runs.h"
#include "framework/comm/communicator.h"
#include "framework/io/hdf5.h"

namespace keel::checkpoints {

struct WriteOptions {
  std::string path;                  // of the complete file
  MPI_Comm io_comm = MPI_COMM_NULL;  // all ranks, used by the I/O thread alone
  std::vector<std::pair<std::string, std::string>> mpi_hints;
  int64_t parts = 1;                       // files with tensors; above 1, `path` links them
  bool one_writer = !io::parallel_hdf5();  // rank 0 writes what all hold: the only way that a serial HDF5 knows
  int64_t tile_elements = kTileElements;
  double io_limit_seconds = kIoLimit_seconds;  // of one step of the save, see io_limit.h
};

// Collective over `world`. Where any rank fails (no space, a value that is not finite, ...) every rank throws that
// rank's error, what was written is removed and earlier checkpoints are untouched. Returns the size of the file in
// bytes.
int64_t write_checkpoint(comm::Communicator& world, io::IoThread& io, const LocalTensors& tensors,
                         const RunState& state, const WriteOptions& options);

}  // namespace keel::checkpoints
