// All ranks, able to exchange tensors on the device under test.
#pragma once

#include <mpi.h>

#include "framework/comm/mpi.h"

namespace keel::testing {

inline std::unique_ptr<comm::Communicator> device_world() {
  return comm::make_mpi_communicator(MPI_COMM_WORLD);
}

}  // namespace keel::testing
