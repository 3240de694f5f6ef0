// What differs between a parallel and a serial HDF5 library. hdf5_parallel.cpp or hdf5_serial.cpp is built.
#pragma once

#include "framework/io/hdf5.h"

namespace keel::io {

// Prepares `access` for options.communicator, and says who shares the file. A serial library refuses more than one
// rank.
Sharing share_file(const PropertyList& access, const std::string& path, const FileOptions& options);

}  // namespace keel::io
