// Chosen where HDF5 was built without MPI: one process per file.
#include "framework/io/hdf5_parallel.h"

namespace keel::io {

bool parallel_hdf5() {
  return false;
}

Sharing share_file(const PropertyList&, const std::string& path, const FileOptions& options) {
  int ranks = 1;
  if (options.communicator != MPI_COMM_NULL) MPI_Comm_size(options.communicator, &ranks);
  if (ranks > 1)
    throw input_error(
        "{}: {} ranks cannot share a file, because this HDF5 is a serial one: install the parallel one "
        "(libhdf5-openmpi-dev) and build again, or use one rank",
        path, ranks);
  return {};
}

}  // namespace keel::io
